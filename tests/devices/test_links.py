"""Reading links from a fake NVML; each case is a machine that exists."""

from __future__ import annotations

from types import SimpleNamespace

from aliquot.devices.links import read_links


class NvmlError(Exception):
    pass


class Nvml:
    """Handles are GPU numbers. `wires[gpu]` lists, by link, the far end: a GPU, or "switch"."""

    NVMLError = NvmlError
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_DEVICE_TYPE_GPU = 0
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

    def __init__(
        self, wires: dict[int, list[int | str | None]], ancestor: int = 50, *, types: bool = True
    ) -> None:
        self.wires, self.ancestor, self.types = wires, ancestor, types

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802 - NVML's name
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        ends = self.wires.get(handle, [])
        if link >= len(ends):
            raise NvmlError
        return int(ends[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:  # noqa: N802
        if not self.types:
            raise NvmlError
        return 2 if self.wires[handle][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(  # noqa: N802
        self, handle: int, link: int
    ) -> SimpleNamespace:
        return SimpleNamespace(busId=f"0000:{self.wires[handle][link]:02x}:00.0".encode())

    def nvmlDeviceGetTopologyCommonAncestor(self, *_pair: int) -> int:  # noqa: N802
        if self.ancestor < 0:
            raise NvmlError
        return self.ancestor


def kinds(nvml: Nvml, count: int) -> list[list[str]]:
    return [[link.kind for link in links] for links in read_links(nvml, range(count))]


def test_a_single_gpu_has_no_links() -> None:
    assert read_links(Nvml({}), [0]) == [()]


def test_gpus_behind_switches_are_all_linked() -> None:
    nvml = Nvml({gpu: ["switch"] * 18 for gpu in range(4)})
    assert kinds(nvml, 4) == [["NV18"] * 3] * 4


def test_direct_links_are_between_pairs_only() -> None:
    nvml = Nvml({0: [1] * 4, 1: [0] * 4, 2: [3] * 4, 3: [2] * 4}, types=False)
    assert kinds(nvml, 4) == [
        ["NV4", "SYS", "SYS"],
        ["NV4", "SYS", "SYS"],
        ["SYS", "SYS", "NV4"],
        ["SYS", "SYS", "NV4"],
    ]


def test_links_that_are_down_do_not_count() -> None:
    nvml = Nvml({0: [1, None, 1], 1: [0, None, 0]})
    assert kinds(nvml, 2) == [["NV2"], ["NV2"]]


def test_pcie_paths_have_nvidia_smi_names() -> None:
    for ancestor, kind in ((0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE")):
        assert kinds(Nvml({}, ancestor), 2) == [[kind], [kind]]


def test_an_unknown_path_is_a_question_mark() -> None:
    assert kinds(Nvml({}, -1), 2) == [["?"], ["?"]]

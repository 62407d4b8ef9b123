"""CDI specs: what they say, that they appear whole, and which runtimes are told of them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aliquot.containers.cdi import CdiSpecs
from aliquot.containers.container_edits import BindMount, ContainerEdits, grant_edits
from aliquot.devices import Inventory
from aliquot.devices.device_location import DeviceLocation
from aliquot.kubernetes.api.objects import NodeInfo
from aliquot.kubernetes.node.grants.allocations import NodeAllocations
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint, SavedAllocations
from aliquot.kubernetes.node.grants.injection import (
    Injection,
    MovedGpuError,
    NoCdiError,
    has_cdi,
)
from aliquot.kubernetes.node.machine import NodeMachine
from aliquot.model import Cdi
from aliquot.model.errors import DriverError, StateError
from kubernetes.builders import make_pod
from kubernetes.node.builders import GPU, MEMORY, make_grant, make_host_gpu
from kubernetes.node.rig import NODE, Node, a_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.node.grants.grant import ContainerGrant

COMMON = ContainerEdits((BindMount(Path("/a"), PurePosixPath("/b"), read_only=False),))
NEW = NodeInfo("v1.36.4", "containerd://2.4.2")
OLD = NodeInfo("v1.36.4", "containerd://1.6.20~ds1")
DRIVER_FILE = "aliquot.io-driver.json"


def own_edits(_: ContainerGrant, folder: Path) -> ContainerEdits:
    return grant_edits(folder, [3])


def make_injection(
    folder: Path,
    setting: Cdi = Cdi.AUTO,
    own: Callable[[ContainerGrant, Path], ContainerEdits] = own_edits,
    common: ContainerEdits = COMMON,
) -> Injection:
    return Injection(
        setting,
        CdiSpecs(folder),
        lambda: common,
        own,
        lambda grant: Path("/run/aliquot/kept") / grant.name,
        lambda: None,
        lambda _: (3,),
    )


def make_cdi_grant(*, cdi: bool = True) -> ContainerGrant:
    one = make_grant("sliced", [make_host_gpu(0)], units={MEMORY: ["a"]}, memory=1)
    return msgspec.structs.replace(one, cdi=cdi)


def save(folder: Path, *grants: ContainerGrant) -> SavedAllocations:
    """The allocations of one GPU, with a checkpoint in a folder of their own."""
    folder.mkdir(exist_ok=True)
    allocations = NodeAllocations([make_host_gpu(0)], 2, grants)
    return SavedAllocations(allocations, Checkpoint(folder / "node.json"))


def file_of(grant: ContainerGrant) -> str:
    return f"aliquot.io-grant-{grant.name}.json"


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


# --- the specs ------------------------------------------------------------------------------------


def test_a_container_is_told_two_devices_that_exist(tmp_path: Path) -> None:
    grant = make_cdi_grant()
    told = make_injection(tmp_path / "cdi", Cdi.ALWAYS).cdi_devices(grant)
    assert told == ("aliquot.io/driver=all", f"aliquot.io/grant={grant.name}")
    assert read(tmp_path / "cdi" / DRIVER_FILE) == {
        "cdiVersion": "0.5.0",
        "kind": "aliquot.io/driver",
        "devices": [
            {
                "name": "all",
                "containerEdits": {
                    "mounts": [
                        {
                            "hostPath": "/a",
                            "containerPath": "/b",
                            "options": ["rbind", "rprivate", "nosuid", "nodev", "rw"],
                        }
                    ]
                },
            }
        ],
    }
    (device,) = read(tmp_path / "cdi" / file_of(grant))["devices"]
    edits = device["containerEdits"]
    assert device["name"] == grant.name
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia3", "permissions": "rw"}]
    (mount,) = edits["mounts"]
    assert mount["hostPath"] == f"/run/aliquot/kept/{grant.name}"
    assert (mount["containerPath"], mount["options"][-1]) == ("/run/aliquot/grant", "ro")


@pytest.mark.parametrize(
    ("capabilities", "files"), [(None, ["/v", "/u"]), (("utility",), ["/u"]), ((), [])]
)
def test_a_spec_has_the_capabilities_that_its_container_wants(
    tmp_path: Path, capabilities: tuple[str, ...] | None, files: list[str]
) -> None:
    optional = ContainerEdits(
        tuple(
            BindMount(Path(path), PurePosixPath(path), capability=capability)
            for path, capability in (("/v", "video"), ("/u", "utility"))
        )
    )
    injection = make_injection(tmp_path, Cdi.ALWAYS, common=COMMON + optional)
    grant = msgspec.structs.replace(make_cdi_grant(), capabilities=capabilities)
    injection.prepare(grant)

    def mounted(file: str) -> list[str]:
        (device,) = read(tmp_path / file)["devices"]
        return [one["containerPath"] for one in device["containerEdits"]["mounts"]]

    assert mounted(DRIVER_FILE) == ["/b"]
    assert mounted(file_of(grant)) == [*files, "/run/aliquot/grant"]
    by_mounts = injection.edits(msgspec.structs.replace(grant, cdi=False))
    assert len(by_mounts.mounts) == 4


def test_specs_go_with_their_grants_and_others_stay(tmp_path: Path) -> None:
    injection = make_injection(tmp_path, Cdi.ALWAYS)
    stays, goes = make_cdi_grant(), make_cdi_grant()
    (tmp_path / "nvidia.yaml").write_text("another vendor's")
    for grant in (stays, goes):
        injection.cdi_devices(grant)
    (tmp_path / ".aliquot.io.new-of-an-agent-that-was-killed").write_text("{")
    injection.keep_only([stays])
    assert files(tmp_path) == {"nvidia.yaml", DRIVER_FILE, file_of(stays)}


def test_specs_are_restored_and_not_touched_if_they_are_right(tmp_path: Path) -> None:
    """A runtime reads all specs again after each change."""
    grants = [make_cdi_grant(), make_cdi_grant(), make_cdi_grant(cdi=False)]
    cdi, saved = tmp_path / "cdi", save(tmp_path / "home", *grants)
    injection = make_injection(cdi)
    injection.restore(saved)
    assert files(cdi) == {DRIVER_FILE, *map(file_of, grants[:2])}
    (cdi / file_of(grants[0])).write_text("torn")
    before = {path.name: path.stat().st_ino for path in cdi.iterdir()}
    injection.restore(saved)
    after = {path.name: path.stat().st_ino for path in cdi.iterdir()}
    assert {name for name in after if before[name] != after[name]} == {file_of(grants[0])}
    assert read(cdi / file_of(grants[0]))


def test_a_grant_whose_record_lost_its_cdi_keeps_its_spec(tmp_path: Path) -> None:
    """An agent without CDI, between two with it, writes all records anew and knows no such field.

    The kubelet told the runtime CDI devices, and tells them again.
    """
    cdi, home = tmp_path / "cdi", tmp_path / "home"
    grants = [make_cdi_grant(), make_cdi_grant()]
    make_injection(cdi).restore(save(home, *grants))
    (cdi / file_of(grants[0])).write_text("of an older driver")
    (cdi / file_of(grants[1])).unlink()
    forgotten = [msgspec.structs.replace(grant, cdi=False) for grant in grants]
    saved = save(home, *forgotten)
    injection = make_injection(cdi)
    injection.keep_only(saved.allocations.saved())
    injection.restore(saved)
    assert files(cdi) == {DRIVER_FILE, file_of(grants[0])}
    assert read(cdi / file_of(grants[0]))
    stored = {grant.name: grant.cdi for grant in Checkpoint(home / "node.json").load().grants}
    assert stored == {grants[0].name: True, grants[1].name: False}


def test_a_spec_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("no folder")
    injection, grant = make_injection(folder, Cdi.ALWAYS), make_cdi_grant()
    with pytest.raises(StateError, match="cannot be written") as caught:
        injection.cdi_devices(grant)
    assert str(folder) in str(caught.value)
    saved = save(tmp_path / "home", grant)
    injection.restore(saved)  # the agent starts all the same: others need no spec
    injection.keep_only([])


def test_an_old_spec_is_removed_if_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    """A kubelet that has just started would start its container by the old one."""
    grants = [make_cdi_grant(), make_cdi_grant()]
    cdi, saved = tmp_path / "cdi", save(tmp_path / "home", *grants)
    make_injection(cdi, Cdi.ALWAYS).restore(saved)
    assert files(cdi) == {DRIVER_FILE, *map(file_of, grants)}

    def lost(grant: ContainerGrant, _: Path) -> ContainerEdits:
        raise DriverError(f"the GPU of {grant.owner} is lost")

    injection = make_injection(cdi, Cdi.ALWAYS, own=lost)
    with pytest.raises(DriverError, match="is lost"):
        injection.prepare(grants[0])
    assert files(cdi) == {DRIVER_FILE, file_of(grants[1])}
    injection.restore(saved)
    assert files(cdi) == {DRIVER_FILE}
    make_injection(cdi, Cdi.ALWAYS).prepare(grants[0])
    assert files(cdi) == {DRIVER_FILE, file_of(grants[0])}


# --- which runtimes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kubelet", "runtime", "wanted"),
    [
        ("v1.36.4", "containerd://2.4.2", True),
        ("v1.30.1-gke.100", "containerd://2.0.0-rc.3", True),
        ("v1.28.9", "containerd://2.0.0", False),
        ("v1.36.4", "containerd://1.7.27", False),
        ("v1.36.4", "containerd://1.6.20~ds1", False),
        ("v1.31.0", "cri-o://1.31.2", True),
        ("v1.31.0", "cri-o://1.26.0", False),
        ("v1.31.0", "docker://27.0.1", False),
        ("v1.31.0", "containerd://", False),
        ("", "", False),
    ],
)
def test_cdi_is_used_where_the_runtime_is_known_to_have_it(
    kubelet: str,
    runtime: str,
    wanted: object,
) -> None:
    assert has_cdi(NodeInfo(kubelet, runtime)) is wanted


def test_the_setting_decides_before_the_runtime(tmp_path: Path) -> None:
    for setting, wanted in ((Cdi.NEVER, "mounts"), (Cdi.AUTO, "cdi"), (Cdi.ALWAYS, "cdi")):
        injection = make_injection(tmp_path, setting)
        injection.observe(NEW)
        assert injection.way == wanted
    injection = make_injection(tmp_path)
    assert injection.way == "mounts", "a runtime that is not known gets mounts"
    assert injection.observe(NEW)
    assert not injection.observe(NEW)


def test_a_container_of_a_runtime_that_lost_cdi_is_refused(tmp_path: Path) -> None:
    """It would start without its GPU."""
    injection, grant = make_injection(tmp_path), make_cdi_grant()
    injection.observe(NEW)
    injection.prepare(grant)
    injection.observe(OLD)
    with pytest.raises(NoCdiError, match=r"containerd://1\.6"):
        injection.prepare(grant)
    injection.prepare(make_cdi_grant(cdi=False))


# --- device nodes -------------------------------------------------------------------------------


def test_a_container_with_mounts_is_refused_if_its_gpus_have_other_device_nodes(
    tmp_path: Path,
) -> None:
    """The kubelet tells the runtime the old nodes, which are other containers' GPUs now."""
    injection = make_injection(tmp_path)
    for minors in (None, (3,)):  # None: an older agent made the grant
        injection.prepare(msgspec.structs.replace(make_cdi_grant(cdi=False), minors=minors))
    grant = msgspec.structs.replace(make_cdi_grant(cdi=False), minors=(1,))
    with pytest.raises(MovedGpuError, match=r"with /dev/nvidia1, .* /dev/nvidia3") as said:
        injection.prepare(grant)
    assert "container 'main' of default/pod-a" in said.value.message
    assert "Delete the pod" in str(said.value.hint)
    injection.prepare(msgspec.structs.replace(grant, cdi=True))  # its spec has the new nodes


def test_device_nodes_are_those_of_the_driver_now() -> None:
    gpus = [make_host_gpu(index) for index in range(2)]
    grant = make_grant("whole", gpus, units={GPU: ["g0", "g1"]})
    attached = {gpu.uuid: DeviceLocation(None, 7 - gpu.index) for gpu in gpus}
    machine = NodeMachine(None, Inventory("", (0, 0), ()), attached)
    assert machine.minors(grant) == (6, 7)
    del attached[gpus[1].uuid]
    with pytest.raises(DriverError, match=f"has the GPU {gpus[1].uuid}, which was not found"):
        machine.minors(grant)


# --- the agent ------------------------------------------------------------------------------------


def put_node(node: Node, info: NodeInfo) -> None:
    status = {"nodeInfo": msgspec.to_builtins(info)}
    node.api.put("nodes", {"metadata": {"name": NODE}, "status": status})


def told(node: Node, pod: Pod) -> list[str]:
    response = node.kubelet.response(pod, "main")
    assert not response.mounts
    assert response.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}, "an image may say `all`"
    assert response.ByteSize() < 128, "a few bytes"
    return [one.name for one in response.cdi_devices]


def test_the_kubelet_is_told_a_few_bytes_and_specs_go_with_pods(short_tmp: Path) -> None:
    async def devices() -> None:
        async with a_node(short_tmp, agent=False) as node:
            put_node(node, NEW)
            node.start_agent()
            await node.ready()
            pod = make_pod("a", memory=5)
            await node.run(pod)
            (grant,) = node.grants()
            assert told(node, pod) == ["aliquot.io/driver=all", f"aliquot.io/grant={grant}"]
            assert files(node.cdi) == {DRIVER_FILE, f"aliquot.io-grant-{grant}.json"}
            await node.until(lambda: node.gpunode().get("injection") == "cdi")
            node.end(pod)
            await node.until(lambda: files(node.cdi) == {DRIVER_FILE})

    asyncio.run(devices())


def test_a_reboot_that_empties_the_folder_loses_no_spec(short_tmp: Path) -> None:
    async def reboot() -> None:
        async with a_node(short_tmp, agent=False) as node:
            put_node(node, NEW)
            node.start_agent()
            await node.ready()
            pods = [make_pod("a", memory=5), make_pod("b", sgpu=1)]
            for pod in pods:
                await node.run(pod)
            before = {path.name: path.read_bytes() for path in node.cdi.iterdir()}
            node.kill_agent()
            shutil.rmtree(node.cdi)
            node.api.delete("nodes", NODE)  # and nobody knows its runtime
            node.start_agent()
            await node.kubelet.restart()
            await node.kubelet.until_registered(*node.kubelet.given[pods[0].metadata.uid]["main"])
            assert {path.name: path.read_bytes() for path in node.cdi.iterdir()} == before
            await node.ready()
            shutil.rmtree(node.cdi)  # by somebody, later
            await node.kubelet.start_container(pods[0], "main")
            assert files(node.cdi) == {
                DRIVER_FILE,
                f"{told(node, pods[0])[1]}.json".replace("aliquot.io/grant=", "aliquot.io-grant-"),
            }

    asyncio.run(reboot())


def test_an_old_runtime_gets_mounts(short_tmp: Path) -> None:
    async def mounts() -> None:
        async with a_node(short_tmp, agent=False) as node:
            put_node(node, OLD)
            node.start_agent()
            await node.ready()
            pod = make_pod("a", memory=5)
            await node.run(pod)
            response = node.kubelet.response(pod, "main")
            assert response.mounts
            assert not response.cdi_devices
            assert files(node.cdi) == set()
            await node.until(lambda: node.gpunode().get("injection") == "mounts")

    asyncio.run(mounts())

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.model.errors import NoGpuError
from aliquot.slices.visible_devices import visible_gpus
from support import make_shared

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")
GPUS = [
    replace(shared, gpu=replace(shared.gpu, uuid=uuid))
    for shared, uuid in zip(map(make_shared, range(3)), UUIDS, strict=True)
]


@pytest.mark.parametrize(
    ("value", "indexes"),
    [
        (None, [0, 1, 2]),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 2 ", [0, 2]),
        ("0,0", [0]),
        ("GPU-bb33", [2]),
        ("GPU-b,GPU-aa2", [2, 1]),
        ("1,-1,2", [1]),  # the list ends there, as for the driver
        ("0,9", [0]),
        ("0,GPU-aa,1", [0]),
    ],
)
def test_gpus_are_selected_by_index_and_uuid(value: str | None, indexes: list[int]) -> None:
    assert [one.gpu.index for one in visible_gpus(GPUS, value)] == indexes


@pytest.mark.parametrize("value", ["", "-1", "3", "none", "GPU-", "GPU-aa", "GPU-cc", "MIG-aa11"])
def test_a_value_that_names_no_gpu_is_refused(value: str) -> None:
    with pytest.raises(NoGpuError, match="CUDA_VISIBLE_DEVICES") as caught:
        visible_gpus(GPUS, value)
    assert repr(value) in caught.value.message
    assert "Unset" in str(caught.value.hint)

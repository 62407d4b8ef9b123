"""The GPUs of a machine and the processes on them, as a simulated NVML reports them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import support

if TYPE_CHECKING:
    from pathlib import Path

# In a process of its own: a process sees one driver, the first that it asked. Its lists are by
# version: what each version of the function returns is its name.
READ = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import pynvml
from aliquot.devices import parse_shape, read_inventory, simulated_driver
pynvml.nvmlSystemGetDriverVersion = lambda: sys.argv[2]
for number, suffix in enumerate(("", "_v2"), 1):
    entry = SimpleNamespace(pid=number, usedGpuMemory=4096)
    for kind in ("Compute", "Graphics"):
        name = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
        setattr(pynvml, name, lambda handle, entry=entry: [entry])
driver = simulated_driver(parse_shape("h100:1"), Path(sys.argv[1]))
(gpu,) = read_inventory(driver).gpus
print(json.dumps([process.pid for process in gpu.processes]))
"""


@pytest.mark.parametrize(
    ("version", "used"),
    [
        ("535.43.02", 2),
        ("535.54.03", 2),
        ("535.86.10", 2),
        ("535.98", 1),
        ("535.104.05", 1),
        ("530.30.02", 1),
        ("580.159", 1),
        ("no version", 1),
    ],
)
def test_drivers_with_wide_entries_are_asked_by_version_2(
    tmp_path: Path, version: str, used: int
) -> None:
    command = [sys.executable, "-c", READ, str(tmp_path), version]
    done = subprocess.run(
        command, env=support.environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == [used]

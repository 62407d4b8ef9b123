"""Images whose programs probe their GPU from inside a container.

`probe` loads the driver and NVML by the names in its arguments (probe.c). `stranger` is a static
program with a driver of its own inside (stranger.c).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from aliquot.devices import CUDA, NVML
from cluster.images import Image, busybox

USER = 1000
MULTIARCH = f"/usr/lib/{os.uname().machine}-linux-gnu"

_HERE = Path(__file__).parent
_SIM = _HERE.parents[1] / "native" / "sim" / "machine"
_SIMULATION = ("machine", "mig", "open", "lock", "shape", "schedule", "share")


def probe_image(name: str, native: Path, folder: Path) -> Image:
    """Busybox with this machine's C library, and the probe."""
    image = busybox()
    image.name = name
    image.add_program(build(folder / "probe", _HERE / "probe.c"), "/bin/probe")
    image.add_libraries(native / kind / file for kind in ("lib", "sim") for file in (CUDA, NVML))
    users = f"root:x:0:0::/root:/bin/sh\nuser:x:{USER}:{USER}::/:/bin/sh\n"
    image.add_text("/etc/passwd", users)
    return image


def musl_image(name: str, folder: Path) -> Image:
    """Busybox with musl as its only C library, and the probe."""
    image = busybox()
    image.name = name
    probe = build(folder / "probe-of-musl", _HERE / "probe.c", compiler="musl-gcc")
    image.add(probe, "/bin/probe")
    image.add(Path(f"/lib/ld-musl-{os.uname().machine}.so.1"))
    assert not [file for file in image.files() if file.name.startswith("ld-linux")]
    return image


def add_stranger(image: Image, folder: Path) -> None:
    """Add the static program, and the file that its driver looks for next to itself."""
    flags = ["-static", "-D_GNU_SOURCE", f"-I{_SIM}"]
    flags += [str(_SIM / f"{part}.c") for part in _SIMULATION]
    image.add(build(folder / "stranger", _HERE / "stranger.c", *flags), "/bin/stranger")
    image.add(_SIM / "shapes.conf", "/bin/shapes.conf")


def build(program: Path, source: Path, *flags: str, compiler: str = "gcc") -> Path:
    command = [compiler, "-O1", str(source), "-o", str(program), *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def parse_probe(lines: str) -> dict[str, int]:
    """The output of a probe."""
    return {key: int(value) for key, value in (pair.split("=") for pair in lines.split())}


def is_limited_to(found: dict[str, int], limit: int) -> bool:
    """Whether a probe saw a GPU of that size, and nothing else."""
    sizes = {found.get(key, limit) for key in ("memory", "nvml_memory")}
    return found["init"] == 0 and found.get("nvml_init", 0) == 0 and sizes == {limit}

"""An image for programs that use this machine's PyTorch, which is mounted: it is many gigabytes."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster.images import Image, busybox

NAME = "aliquot.test/torch:1"
_ASK = """
import json, sys, sysconfig, torch
found = {"program": sys.executable, "prefix": sys.prefix, "stdlib": sysconfig.get_path("stdlib")}
print(json.dumps(found | {"torch": torch.__path__[0]}))
"""
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


@dataclass(frozen=True)
class Torch:
    """A Python with PyTorch: its interpreter, its environment's prefix, its standard library."""

    program: Path
    prefix: Path
    stdlib: Path
    torch: Path

    def image(self) -> Image:
        """The interpreter and the libraries of this machine; `prefix` must be mounted."""
        image = busybox()
        image.name = NAME
        image.add(self.stdlib, skip=lambda path: path.name in _LEFT_OUT)
        program = self.program.resolve()
        image.add_program(program)
        for name in ("python3", "python"):
            if str(program.parent / name) != str(program):
                image.add_link(str(program.parent / name), program.name)
        compiled = [*self.stdlib.glob("lib-dynload/*.so"), *self.torch.glob("lib/*.so")]
        compiled += map(Path, filter(None, [shutil.which("nvidia-smi")]))  # the driver brings it
        image.add_libraries(compiled)
        return image


def find_torch(python: str) -> Torch:
    """The environment of that interpreter."""
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True)
    return Torch(**{name: Path(path) for name, path in json.loads(done.stdout).items()})

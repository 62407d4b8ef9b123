"""Kueue, Karpenter and an older Kubernetes, built once from tests/cluster/binaries and kept.

    make test-neighbours     builds what is missing, and runs the tests of this folder

Each lies in a folder of its own in the user's cache folder, by version and architecture;
`ALIQUOT_KUEUE_BIN`, `ALIQUOT_KARPENTER_BIN` and `ALIQUOT_KUBERNETES_1_34_BIN` name folders of ready
ones. Their own charts and CustomResourceDefinitions are in the sources that Go has downloaded.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster.programs import (
    ARCHITECTURES,
    KUBERNETES,
    MODULES,
    NAMES,
    Programs,
    ProgramsError,
    cache_folder,
    find_go,
    required,
)


@dataclass(frozen=True)
class Neighbour:
    """Programs of another project or version; `built` is what Go calls them, the main one first."""

    name: str
    module: str
    built: tuple[str, ...]

    @property
    def programs(self) -> Programs:
        version = required(self.name, self.module)
        key = f"{self.name}-{version}-{ARCHITECTURES[platform.machine()]}"
        variable = f"ALIQUOT_{re.sub('[-.]', '_', self.name).upper()}_BIN"
        folder = os.environ.get(variable) or cache_folder().parent / "neighbours" / key
        return Programs(Path(folder), self.built, (self.name,), variable)

    @property
    def program(self) -> Path:
        return self.programs.path(self.built[0])

    @property
    def sources(self) -> Path:
        """The folder of its module, as Go has downloaded it."""
        command = [*find_go(), "list", "-m", "-f", "{{.Dir}}", self.module]
        done = subprocess.run(
            command, cwd=MODULES / self.name, capture_output=True, text=True, check=False
        )
        if done.returncode or not done.stdout.strip():
            raise ProgramsError(f"{self.module} was not downloaded: {done.stderr.strip()}")
        return Path(done.stdout.strip())


KUEUE = Neighbour("kueue", "sigs.k8s.io/kueue", ("kueue",))
KARPENTER = Neighbour("karpenter", "sigs.k8s.io/karpenter", ("kwok",))  # its provider of that name
OLDER_KUBERNETES = Neighbour(
    "kubernetes-1.34", KUBERNETES, tuple(name for name in NAMES if name != "kwok")
)


if __name__ == "__main__":
    try:
        for each in (KUEUE, KARPENTER, OLDER_KUBERNETES):
            each.programs.provided()
    except ProgramsError as error:
        sys.exit(str(error))

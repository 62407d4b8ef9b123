"""The messages of the kubelet's interfaces are those of our .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path("aliquot/kubernetes/kubelet")


def test_the_committed_messages_are_those_of_make_proto(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "src"
    protos = sorted(str(path) for path in (source / FOLDER).glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}"]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos]
    subprocess.run(command, check=True, timeout=60)
    made = {path.name: path.read_text() for path in (tmp_path / FOLDER).iterdir()}
    kept = {name: (source / FOLDER / name).read_text() for name in made}
    assert made == kept, "run: make proto"
    assert len(made) == 2 * len(protos)

"""Container images made of files of this machine: there is no registry to pull from.

An `Image` is filled with files, folders and programs and written as an archive of one layer, which
`ctr image import` reads (`Node.load`). The same files give the same archive, byte for byte.

    image = Image("tenant:test", command=["/bin/tenant"])
    image.add_program(built, "/bin/tenant")     # with the libraries that it is linked with
    cluster.load(image)
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.programs import ARCHITECTURES

BUSYBOX = "aliquot.test/busybox:1"
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)

Skip = Callable[[Path], bool]


@dataclass
class Image:
    """An image by its full name, with what a container of it runs when its pod says nothing."""

    name: str
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    _members: dict[str, tuple[tarfile.TarInfo, Path | bytes | None]] = field(default_factory=dict)

    def add(self, source: Path, target: str = "", *, skip: Skip = lambda _: False) -> None:
        """A file, link or folder of this machine, at its own path or at another.

        A file is what `source` leads to. Inside a folder links stay links; what `skip` says yes
        to is left out, with all that is in it.
        """
        target = target or str(source)
        if source.is_dir():
            self._add_member(target, tarfile.DIRTYPE, mode=0o755)
            for path in sorted(source.iterdir()):
                inner = f"{target}/{path.name}"
                if skip(path):
                    continue
                if path.is_symlink():
                    self.add_link(inner, str(path.readlink()))
                else:
                    self.add(path, inner, skip=skip)
        elif source.is_file():
            self._add_member(target, tarfile.REGTYPE, content=source)

    def add_text(self, target: str, text: str, mode: int = 0o644) -> None:
        self._add_member(target, tarfile.REGTYPE, mode=mode, content=text.encode())

    def add_link(self, target: str, leads_to: str) -> None:
        self._add_member(target, tarfile.SYMTYPE, link=leads_to)

    def add_program(self, source: Path, target: str = "") -> None:
        """A program or library, with its interpreter and the libraries it is linked with."""
        self.add(source, target)
        self.add_libraries([source])

    def add_libraries(self, programs: Iterable[Path]) -> None:
        """The libraries that these programs and libraries of this machine are linked with."""
        for library in linked_libraries(programs):
            self.add(library)

    def files(self) -> list[Path]:
        """The files of this machine that are in it."""
        return [source for _, source in self._members.values() if isinstance(source, Path)]

    def write(self, archive: Path) -> None:
        """Write the archive that `ctr image import` reads."""
        layer = archive.with_suffix(".layer")
        with layer.open("wb") as file:
            self._write_layer(file)
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        config = json.dumps(self._config(digest)).encode()
        manifest = [{"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}]
        with tarfile.open(archive, "w") as tar:
            _add_bytes(tar, "config.json", config)
            _add_bytes(tar, "manifest.json", json.dumps(manifest).encode())
            with layer.open("rb") as file:
                member = tarfile.TarInfo("layer.tar")
                member.size = layer.stat().st_size
                tar.addfile(member, file)
        layer.unlink()

    def _config(self, digest: str) -> dict[str, object]:
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", **self.env}
        return {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {
                "Env": [f"{key}={value}" for key, value in env.items()],
                "Cmd": list(self.command),
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }

    def _write_layer(self, file: io.BufferedWriter) -> None:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name in sorted(self._members):
                member, content = self._members[name]
                if isinstance(content, Path):
                    member.size = content.stat().st_size
                    with content.open("rb") as data:
                        tar.addfile(member, data)
                elif content is not None:
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                else:
                    tar.addfile(member)

    def _add_member(
        self,
        target: str,
        kind: bytes,
        *,
        mode: int = 0o777,
        link: str = "",
        content: Path | bytes | None = None,
    ) -> None:
        name = os.path.normpath(target).lstrip("/")
        member = tarfile.TarInfo(name)
        member.type, member.mode, member.linkname = kind, mode, link
        if isinstance(content, Path):
            found = content.stat()
            member.mode = found.st_mode & 0o7777
            member.mtime = int(found.st_mtime)  # by which Python tells what it compiled already
        if name:
            self._members[name] = (member, content)
        for parent in Path(name).parents[:-1]:
            if str(parent) not in self._members:
                self._add_member(str(parent), tarfile.DIRTYPE, mode=0o755)


def busybox() -> Image:
    """A small image with a shell and the usual tools. It sleeps when its pod says nothing."""
    image = Image(BUSYBOX, command=["/bin/sleep", "2147483647"])
    program = shutil.which("busybox")
    assert program, "busybox is not installed: apt-get install busybox-static"
    image.add_program(Path(program), "/bin/busybox")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    for applet in listed.stdout.split():
        if applet != "busybox":
            image.add_link(f"/bin/{applet}", "busybox")
    image.add_text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000::/:/bin/sh\n")
    image.add_text("/etc/group", "root:x:0:\nguest:x:1000:\n")
    image.add_text("/root/.profile", "")
    image.add_text("/tmp/.keep", "")
    return image


def linked_libraries(programs: Iterable[Path]) -> list[Path]:
    """What the dynamic linker loads for them, itself included; nothing for a static program."""
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    return [Path(found) for found in sorted(set(_LIBRARY.findall(done.stdout)))]


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))

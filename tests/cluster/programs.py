"""Kubernetes' programs and its container runtime, built once from binaries/ and kept.

    make kubernetes     builds what is missing

They lie in the user's cache folder, by version and architecture: Kubernetes in one folder,
containerd and runc in another. `ALIQUOT_KUBERNETES_BIN` and `ALIQUOT_RUNTIME_BIN` name folders of
ready ones. The versions and checksums of all sources are in go.mod and go.sum. A folder appears
whole or not at all, and one build serves all who wait for it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "binaries"
NAMES = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kwok",
)
RUNTIME_NAMES = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
KUBERNETES = "k8s.io/kubernetes"
_CONTAINERD = "github.com/containerd/containerd/v2"
_RUNC = "github.com/opencontainers/runc"
# Without file systems that the tests do not use, and with what containerd asks of runc.
_TAGS = {"containerd": "no_btrfs,no_devmapper,no_zfs", "runc": "seccomp"}
_GO = (1, 26)
_ETCD = "go.etcd.io/etcd/server/v3"  # a program too, which Go would call `server`
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ProgramsError(RuntimeError):
    """Programs are not there and could not be built."""


@dataclass(frozen=True)
class Programs:
    """A folder with all of `names`, built from `modules`; `variable` can name another folder."""

    folder: Path
    names: tuple[str, ...] = NAMES
    modules: tuple[str, ...] = ("kubernetes", "kwok")
    variable: str = "ALIQUOT_KUBERNETES_BIN"

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def missing(self) -> list[str]:
        return [name for name in self.names if not os.access(self.path(name), os.X_OK)]

    @property
    def is_named(self) -> bool:
        return bool(os.environ.get(self.variable))

    def found(self) -> Programs:
        """The programs as they are; an error says how to get them."""
        if self.missing:
            origin = self.variable if self.is_named else "`make kubernetes` builds them"
            raise ProgramsError(f"{self.folder} has no {', '.join(self.missing)} ({origin})")
        return self

    def provided(self) -> Programs:
        """The programs, built now where they are not yet."""
        if self.is_named:
            return self.found()
        cache = self.folder.parent
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / "lock"):
            if self.missing:
                _build(self)
        return self


def find_programs() -> Programs:
    """Kubernetes' programs; an error says how to get them."""
    return _kubernetes().found()


def provide_programs() -> Programs:
    """Kubernetes' programs, built now where they are not yet."""
    return _kubernetes().provided()


def find_runtime() -> Programs:
    """containerd and runc, which have CDI; an error says how to get them."""
    return _runtime().found()


def provide_runtime() -> Programs:
    """containerd and runc, built now where they are not yet."""
    return _runtime().provided()


def kubernetes_version(module: str = "kubernetes") -> str:
    """The version of Kubernetes that this module builds."""
    return required(module, KUBERNETES)


def _kubernetes() -> Programs:
    kwok = required("kwok", "sigs.k8s.io/kwok")
    key = f"{kubernetes_version()}-kwok-{kwok}-{ARCHITECTURES[platform.machine()]}"
    return Programs(Path(os.environ.get("ALIQUOT_KUBERNETES_BIN") or cache_folder() / key))


def _runtime() -> Programs:
    versions = f"{required('containerd', _CONTAINERD)}-runc-{required('runc', _RUNC)}"
    key = f"containerd-{versions}-{ARCHITECTURES[platform.machine()]}"
    folder = os.environ.get("ALIQUOT_RUNTIME_BIN") or cache_folder().parent / "runtime" / key
    return Programs(Path(folder), RUNTIME_NAMES, ("containerd", "runc"), "ALIQUOT_RUNTIME_BIN")


def _build(programs: Programs) -> None:
    go = find_go()
    for killed in programs.folder.parent.glob("building-*"):
        shutil.rmtree(killed)
    with tempfile.TemporaryDirectory(dir=programs.folder.parent, prefix="building-") as folder:
        for module in programs.modules:
            build_module(go, module, Path(folder))
        shutil.rmtree(programs.folder, ignore_errors=True)
        ready = Path(folder, "bin")
        ready.rename(programs.folder)
    _say(f"ready in {programs.folder}")


def build_module(go: list[str], module: str, folder: Path) -> None:
    packages = _tools(module)
    _say(f"building {module}: {', '.join(_name(each) for each in packages)}")
    values = _containerd_values() if module == "containerd" else _kubernetes_values(module)
    link = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])
    command = [*go, "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    command += ["-tags", _TAGS.get(module, "")]
    command += ["-ldflags", link, "-o", str(folder / "bin") + "/", *packages]
    # runc enters namespaces in C, before Go starts threads.
    cgo = "1" if module == "runc" else "0"
    environment = os.environ | {"CGO_ENABLED": cgo, "GOFLAGS": "", "GOWORK": "off"}
    with subprocess.Popen(
        command, cwd=MODULES / module, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        end = _tell_progress(process.stderr)
    if process.returncode:
        raise ProgramsError(f"building {module} failed:\n{end}")
    if _ETCD in packages:
        Path(folder, "bin", "server").rename(Path(folder, "bin", "etcd"))


def _kubernetes_values(module: str) -> dict[str, str]:
    version = kubernetes_version(module if module.startswith("kubernetes") else "kubernetes")
    major, minor = version.removeprefix("v").split(".")[:2]
    return {
        "k8s.io/component-base/version.gitVersion": version,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": version,
    }


def _containerd_values() -> dict[str, str]:
    return {f"{_CONTAINERD}/version.Version": required("containerd", _CONTAINERD)}


def _tell_progress(lines: Iterator[str]) -> str:
    """Say now and then how far it is; the last lines, for when it fails."""
    began = told = time.monotonic()
    compiled = 0
    last: list[str] = []
    for line in lines:
        last = [*last[-20:], line]
        compiled += not line.startswith("go: downloading")
        if time.monotonic() > told + 15:
            told = time.monotonic()
            _say(f"  after {told - began:.0f} s: {compiled} packages compiled; {line.strip()}")
    return "".join(last)


def find_go() -> list[str]:
    """This machine's Go, or the one that the dependency group `cluster` brings."""
    if (found := shutil.which("go")) and _is_new_enough(found):
        return [found]
    uv = shutil.which(os.environ.get("UV", "uv"))
    if uv is None:
        raise ProgramsError(f"Go {_GO[0]}.{_GO[1]} or newer is needed; install it, or uv to get it")
    project = ["--project", str(MODULES.parents[2]), "--locked", "--only-group=cluster"]
    return [str(Path(uv).absolute()), "run", "--isolated", *project, "go"]


def _is_new_enough(go: str) -> bool:
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"go(\d+)\.(\d+)", said)
    return match is not None and (int(match[1]), int(match[2])) >= _GO


def _tools(module: str) -> list[str]:
    text = (MODULES / module / "go.mod").read_text("utf-8")
    block = re.search(r"^tool \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    return block[1].split() if block else re.findall(r"^tool (\S+)$", text, re.MULTILINE)


def _name(package: str) -> str:
    return "etcd" if package == _ETCD else Path(package).name


def required(module: str, path: str) -> str:
    text = (MODULES / module / "go.mod").read_text("utf-8")
    match = re.search(rf"^(?:require )?\s*{re.escape(path)} (v\S+)", text, re.MULTILINE)
    assert match, f"{module}/go.mod does not require {path}"
    return match[1]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "aliquot", "kubernetes")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        provide_programs()
        provide_runtime()
    except ProgramsError as error:
        sys.exit(str(error))

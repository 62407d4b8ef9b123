"""The chart as Helm renders it, and Helm itself.

    python -m kubernetes.chart find      where Helm is; it may be nowhere
    python -m kubernetes.chart build     builds Helm where it is missing
    python -m kubernetes.chart write     writes deploy/aliquot.yaml anew

Helm is built from the module in tests/cluster/binaries/helm, whose versions are those of the tests'
Kubernetes so that most of it is compiled already, and kept in the user's cache folder;
`ALIQUOT_HELM` names a ready one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped] # lightkube brings it, without types

from cluster import programs

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
MANIFEST = ROOT / "deploy" / "aliquot.yaml"
NAMESPACE = "aliquot-system"

_HEAD = """\
# Aliquot on a cluster, without Helm: what the chart beside this file renders (make manifest).
# It needs the image that docs/kubernetes.md says how to make.
"""
_SHOWN_NOTES = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data:
  notes: {{ include (print .Template.BasePath "/NOTES.txt") . | quote }}
"""
_STATIC = ("namespace.create=true",)

Objects = list[dict[str, Any]]


class NoHelmError(RuntimeError):
    """Helm is not there."""


class HelmError(RuntimeError):
    """What Helm said when it refused."""


def find_helm() -> Path:
    """Helm as it is; an error says how to get it."""
    named = os.environ.get("ALIQUOT_HELM")
    helm = Path(named) if named else _built()
    if not os.access(helm, os.X_OK):
        raise NoHelmError(f"there is no Helm at {helm} (make kubernetes builds it)")
    return helm


def provide_helm() -> Path:
    """Helm, built now where it is not yet."""
    try:
        return find_helm()
    except NoHelmError:
        _build(_built())
    return find_helm()


def render(*values: str, kubernetes: str | None = None) -> str:
    """What `helm template` prints with these values (`name=value`)."""
    command = ["template", "aliquot", str(CHART), f"--namespace={NAMESPACE}"]
    command += [f"--kube-version={kubernetes or programs.kubernetes_version()}"]
    return helm(*command, *(f"--set={value}" for value in values))


def notes(*values: str) -> str:
    """What `helm install` prints at its end with these values, which `helm template` leaves out."""
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(CHART, Path(folder, "chart"))
        Path(copied, "templates", "shown.yaml").write_text(_SHOWN_NOTES, "utf-8")
        command = ["template", "aliquot", str(copied), f"--namespace={NAMESPACE}"]
        command += [f"--kube-version={programs.kubernetes_version()}"]
        command += ["--show-only=templates/shown.yaml", *(f"--set={value}" for value in values)]
        (shown,) = objects(helm(*command))
    return str(shown["data"]["notes"])


def helm(*arguments: str, timeout: float = 60.0) -> str:
    """What Helm prints."""
    done = subprocess.run(
        [str(find_helm()), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def static_manifest() -> str:
    """What deploy/aliquot.yaml should be."""
    return _HEAD + render(*_STATIC)


def objects(text: str) -> Objects:
    """The objects of a manifest."""
    return [one for one in yaml.safe_load_all(text) if one]


def templates(*names: str) -> Objects:
    """The objects of these templates, on a Kubernetes that serves all that the chart can use."""
    shown = (f"--show-only=templates/{name}.yaml" for name in names)
    served = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
    where = f"--namespace={NAMESPACE}", f"--kube-version={programs.kubernetes_version()}"
    return objects(
        helm("template", "aliquot", str(CHART), *where, f"--api-versions={served}", *shown)
    )


def _built() -> Path:
    version = programs.required("helm", "helm.sh/helm/v3")
    return programs.cache_folder().parent / f"helm-{version}" / "helm"


def _build(helm: Path) -> None:
    helm.parent.mkdir(parents=True, exist_ok=True)
    with (
        programs.locked(helm.parent / "lock"),
        tempfile.TemporaryDirectory(dir=helm.parent) as folder,
    ):
        if not helm.exists():
            programs.build_module(programs.find_go(), "helm", Path(folder))
            Path(folder, "bin", "helm").rename(helm)


if __name__ == "__main__":
    if sys.argv[1:] == ["find"]:
        sys.stdout.write(f"{find_helm()}\n")
    elif sys.argv[1:] == ["build"]:
        provide_helm()
    elif sys.argv[1:] == ["write"]:
        provide_helm()
        MANIFEST.write_text(static_manifest(), "utf-8")
    else:
        sys.exit(__doc__)

"""A cluster to play with: `make cluster` leaves one running, `make cluster-down` ends it.

`make cluster-gpu`: with the GPUs of this machine instead of simulated ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aliquot.devices import find_driver
from cluster import registry
from cluster.cluster import Cluster
from cluster.control_plane import kubeconfig_in
from cluster.installed import IMAGE, NOW, SPACE, install
from cluster.programs import find_programs, kubernetes_version
from kubernetes.chart import find_helm

EXAMPLE = Path(__file__).with_name("example.yaml")
GPUS = "h100:4"


def up(gpus: str | None) -> None:
    """Start one, unless one was left running."""
    for place in registry.kept() or [_start(gpus)]:
        print(_invitation(place))


def down() -> None:
    """End all that were left running."""
    places = registry.kept()
    for place in places:
        place.remove()
        print(f"ended: the cluster in {place.folder}")
    if not places:
        print("no cluster was left running")


def _start(gpus: str | None) -> registry.Place:
    cluster = Cluster()
    print("Kubernetes starts...", flush=True)
    cluster.start()
    which = f"simulated GPUs ({gpus})" if gpus else "the GPUs of this machine"
    print(f"Helm installs Aliquot, with {which}...", flush=True)
    try:
        install(cluster, gpus)
    except BaseException:
        cluster.stop()
        raise
    cluster.keep()
    return cluster.place


def _invitation(place: registry.Place) -> str:
    kubectl, image = find_programs().path("kubectl"), f"{IMAGE}:{NOW.tag}"
    return f"""\
Kubernetes {kubernetes_version()} runs, and Aliquot in its namespace {SPACE}. In a shell as root:
  export KUBECONFIG={kubeconfig_in(place)}
  alias kubectl={kubectl}
  alias helm={find_helm()}
  kubectl -n {SPACE} get pods
  kubectl apply -f {EXAMPLE}
  kubectl wait --for condition=Ready pod/halves
  kubectl logs halves
  kubectl get gpunodes
Its nodes pull no images. To run the examples (docs/kubernetes.md says more):
  kubectl create namespace mixed
  kubectl label namespace mixed aliquot.io/schedule=true
  sed 's|pytorch/pytorch:latest|{image}|' examples/kubernetes/mixed.yaml |
    kubectl -n mixed apply -f -
`make cluster-down` ends it, and removes {place.folder}."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["up", "up-gpu", "down"])
    match parser.parse_args().action:
        case "up":
            up(GPUS)
        case "up-gpu":
            find_driver()
            up(None)
        case "down":
            down()

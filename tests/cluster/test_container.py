"""Programs in pods, by a real kubelet and containerd: every way in leads to the pod's own grant."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot import devices
from aliquot.devices import CUDA, NVML
from aliquot.kubernetes.api.names import MEMORY_UNIT
from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.images import Image
from cluster.manifests import pod
from containers.probe_images import (
    USER,
    add_stranger,
    is_limited_to,
    musl_image,
    parse_probe,
    probe_image,
)
from support import compile_library

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

UNITS = 8
LIMITS = {"aliquot.io/vcuda-memory": UNITS}
PROBE = ("probe", CUDA, NVML)
OWN = 'int puts(const char *); __attribute__((constructor)) void f(void) { puts("own=1"); }'


@pytest.fixture(scope="module")
def tenant(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that has a preload of its own and resets its environment; its name."""
    folder = tmp_path_factory.mktemp("tenant")
    image = probe_image("aliquot.test/tenant:1", devices.native_dir(), folder)
    image.add(compile_library(folder, "libown.so", OWN), "/usr/lib/libown.so")
    image.add_text("/etc/ld.so.preload", "/usr/lib/libown.so\n")
    image.add_text("/etc/profile", "unset LD_PRELOAD; export LD_LIBRARY_PATH=/nowhere\n")
    add_stranger(image, folder)
    return load(cluster, image)


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[Agent]:
    one = Agent(cluster, "h100:2")
    one.start()
    yield one
    one.close()


def load(cluster: Cluster, image: Image) -> str:
    cluster.load(image)
    return image.name


def look(cluster: Cluster, namespace: str, name: str, *command: str) -> dict[str, int]:
    """What a command in a pod's first container sees."""
    target = ["exec", name, f"--namespace={namespace}", "--container=main", "--"]
    return parse_probe(cluster.kubectl(*target, *(command or PROBE)))


def test_every_shell_and_every_user_is_in_the_slice(
    cluster: Cluster, namespace: str, agent: Agent, tenant: str
) -> None:
    for name, uid in (("root", 0), ("user", USER)):
        one = pod(name, image=tenant, limits=LIMITS, namespace=namespace)
        one["spec"]["securityContext"] = {"runAsUser": uid, "runAsGroup": uid}
        cluster.apply(one)
        cluster.wait_for_pod(name, namespace, "Running", 120)
        for command in (
            PROBE,
            ("env", "-i", "/bin/probe", CUDA, NVML),
            ("sh", "-l", "-c", " ".join(PROBE)),
            ("probe", "libcuda.so", "libnvidia-ml.so"),
            ("probe", f"/usr/lib64/{CUDA}", f"/usr/local/nvidia/lib64/{NVML}"),
        ):
            found = look(cluster, namespace, name, *command)
            assert found["own"], "the image's own preload"
            assert is_limited_to(found, UNITS * MEMORY_UNIT), command


def test_each_container_of_a_pod_has_its_own_grant(
    cluster: Cluster, namespace: str, agent: Agent, tenant: str
) -> None:
    one = pod("two", image=tenant, limits=LIMITS, namespace=namespace)
    main = one["spec"]["containers"][0]
    larger = {"limits": {"aliquot.io/vcuda-memory": 3 * UNITS}}
    one["spec"]["containers"].append({**main, "name": "larger", "resources": larger})
    cluster.apply(one)
    cluster.wait_for_pod("two", namespace, "Running", 120)
    for name, units in (("main", UNITS), ("larger", 3 * UNITS)):
        target = ["exec", "two", f"--namespace={namespace}", f"--container={name}", "--"]
        assert is_limited_to(parse_probe(cluster.kubectl(*target, *PROBE)), units * MEMORY_UNIT)

    def sizes() -> list[int]:
        return sorted(grant.slices[0].memory_bytes for grant in agent.grants().values())

    wanted = [UNITS * MEMORY_UNIT, 3 * UNITS * MEMORY_UNIT]
    agent.until(lambda: sizes() == wanted, "two grants; those of other tests have ended")


def test_a_container_that_starts_again_has_the_same_grant(
    cluster: Cluster, namespace: str, agent: Agent, tenant: str
) -> None:
    again = pod("again", image=tenant, limits=LIMITS, namespace=namespace, restartPolicy="Always")
    cluster.apply(again)
    cluster.wait_for_pod("again", namespace, "Running", 120)
    assert is_limited_to(look(cluster, namespace, "again"), UNITS * MEMORY_UNIT)
    agent.until(lambda: len(agent.grants()) == 1, "those of other tests have ended")
    before = set(agent.grants())
    # From outside: when process 1 ends, the kernel kills the whole pid namespace. A `kill 1` by
    # `kubectl exec` may be killed with it before it exits, and kubectl then fails with 137.
    agent.kill_container(namespace, "again")

    def has_started_again() -> bool:
        status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/again")["status"]
        (one,) = status["containerStatuses"]
        return bool(one["restartCount"] == 1 and one["ready"])

    agent.until(has_started_again, "the container runs again")
    assert is_limited_to(look(cluster, namespace, "again"), UNITS * MEMORY_UNIT)
    assert set(agent.grants()) == before


def test_a_static_program_is_reported(
    cluster: Cluster, namespace: str, agent: Agent, tenant: str
) -> None:
    command = ["/bin/sh", "-c", "sleep 2147483647 | /bin/stranger"]
    cluster.apply(pod("static", command, image=tenant, limits=LIMITS, namespace=namespace))
    agent.until(
        lambda: "LimitsBypassed" in dict(agent.events(namespace, "static")), "an event says so"
    )
    assert "stranger" in dict(agent.events(namespace, "static"))["LimitsBypassed"]


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="needs musl-gcc: musl-tools")
def test_a_musl_image_gets_an_event(
    cluster: Cluster, namespace: str, agent: Agent, tmp_path: Path
) -> None:
    image = load(cluster, musl_image("aliquot.test/musl:1", tmp_path))
    cluster.apply(pod("musl", image=image, limits=LIMITS, namespace=namespace))
    cluster.wait_for_pod("musl", namespace, "Running", 120)
    agent.until(lambda: "MuslImage" in dict(agent.events(namespace, "musl")), "an event says so")
    target = ["exec", "musl", f"--namespace={namespace}", "--"]
    said = cluster.kubectl(*target, "sh", "-c", f"probe {CUDA} - 2>&1")
    assert "needs glibc" in said

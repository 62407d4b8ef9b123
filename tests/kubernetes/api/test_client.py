"""Requests to the API server, their results and their errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aliquot.kubernetes.api.client import ApiError, Client, connect
from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGpu
from aliquot.kubernetes.api.objects import (
    GPU_NODES,
    LEASES,
    PODS,
    Binding,
    GpuNode,
    Lease,
    LeaseSpec,
    Meta,
    Target,
)
from aliquot.kubernetes.api.watch import Watch
from aliquot.model.errors import AliquotError
from kubernetes.fake_api import FakeApi

FIRST, SECOND = "first", "second"  # tokens


def lease(name: str, holder: str = "") -> Lease:
    return Lease(Meta(name=name, namespace="ns"), LeaseSpec(holder_identity=holder))


def test_a_list_is_fetched_in_pages() -> None:
    async def play() -> None:
        api = FakeApi()
        for number in range(7):
            api.put("pods", {"metadata": {"name": f"p{number}", "namespace": "ns"}})
        api.faults.page = 3
        async with api.serving(), api.client() as client:
            found = await client.list(PODS)
            assert [one.metadata.name for one in found.items] == [f"p{n}" for n in range(7)]
            assert found.version == str(api.version)
            assert len(api.requests) == 3

    asyncio.run(play())


def test_objects_are_made_read_replaced_patched_and_deleted() -> None:
    async def play(client: Client, api: FakeApi) -> None:
        made = await client.create(LEASES, lease("one", "me"))
        assert api.all("leases")[0]["kind"] == "Lease"
        await client.replace(LEASES, made)
        with pytest.raises(ApiError) as refused:
            await client.replace(LEASES, made)
        assert refused.value.conflict
        patch = {"spec": {"holderIdentity": "you"}}
        patched = await client.patch(LEASES, "one", patch, namespace="ns")
        assert patched.spec.holder_identity == "you"
        assert await client.get(LEASES, "one", "ns") == patched
        await client.delete(LEASES, "one", "ns")
        await client.delete(LEASES, "one", "ns")
        with pytest.raises(ApiError) as missing:
            await client.get(LEASES, "one", "ns")
        assert missing.value.not_found
        assert "leases 'one' not found" in missing.value.message
        assert (missing.value.status, missing.value.reason) == (404, "NotFound")

    _with_server(play)


def test_a_binding_gives_a_pod_its_node_and_annotations_once() -> None:
    async def play(client: Client, api: FakeApi) -> None:
        api.put("pods", {"metadata": {"name": "p", "namespace": "ns", "uid": "u1"}})
        binding = Binding(
            Meta(name="p", namespace="ns", uid="u1", annotations={"plan": "x"}), Target("n1")
        )
        await client.bind(binding)
        pod = await client.get(PODS, "p", "ns")
        assert (pod.spec.node_name, pod.metadata.annotations) == ("n1", {"plan": "x"})
        with pytest.raises(ApiError) as refused:
            await client.bind(binding)
        assert refused.value.conflict

    _with_server(play)


def test_a_nodes_gpus_are_read_as_they_were_written() -> None:
    async def play(client: Client, _: FakeApi) -> None:
        status = GpuNodeStatus(gpus=(NodeGpu(0, "GPU-0", "H100", 80 << 30, kind="sliced"),))
        await client.create(GPU_NODES, GpuNode(Meta(name="n1"), status))
        assert (await client.get(GPU_NODES, "n1")).status == status

    _with_server(play)


def test_an_unreachable_server_is_distinguished_from_a_refusal() -> None:
    async def play(client: Client, api: FakeApi) -> None:
        api.faults.refuse = lambda *_: 503
        with pytest.raises(ApiError) as busy:
            await client.get(PODS, "p", "ns")
        assert busy.value.passing
        api.faults.refuse = lambda *_: 403
        with pytest.raises(ApiError) as forbidden:
            await client.get(PODS, "p", "ns")
        assert not forbidden.value.passing

    _with_server(play)

    async def away() -> None:
        api = FakeApi()
        async with api.serving():
            client = api.client()
        with pytest.raises(ApiError) as gone:
            await client.get(PODS, "p", "ns")
        assert gone.value.passing
        assert gone.value.status == 0
        await client.close()

    asyncio.run(away())


def _kubeconfig(file: Path, api: FakeApi, user: str) -> Path:
    file.write_text(
        f"""
apiVersion: v1
current-context: c
clusters: [{{name: k, cluster: {{server: "{api.url}"}}}}]
contexts: [{{name: c, context: {{cluster: k, user: u, namespace: mine}}}}]
users: [{{name: u, user: {{{user}}}}}]
"""
    )
    return file


def test_a_kubeconfig_names_the_server_the_user_and_the_namespace(tmp_path: Path) -> None:
    async def play(_: Client, api: FakeApi) -> None:
        api.token = FIRST
        async with connect(_kubeconfig(tmp_path / "one", api, f"token: {FIRST}")) as client:
            assert client.namespace == "mine"
            assert (await client.list(PODS)).items == []
        async with connect(_kubeconfig(tmp_path / "two", api, f"token: {SECOND}")) as client:
            with pytest.raises(ApiError, match="Unauthorized"):
                await client.list(PODS)

    _with_server(play)


def test_a_token_that_was_renewed_is_read_again(tmp_path: Path) -> None:
    """The kubelet writes a pod's token anew every hour; an exec plug-in has another as well."""
    file = tmp_path / "token"
    asked = tmp_path / "asked"
    program = tmp_path / "login"
    program.write_text(
        f"""#!/bin/sh
echo asked >> {asked}
printf '{{"status": {{"token": "%s"}}}}' "$(cat {file})"
"""
    )
    program.chmod(0o755)
    ways = {
        "file": f"tokenFile: {file}",
        "exec": f"exec: {{apiVersion: client.authentication.k8s.io/v1beta1, command: {program}}}",
    }

    async def play(_: Client, api: FakeApi) -> None:
        for way, user in ways.items():
            api.token = FIRST
            file.write_text(FIRST)
            async with connect(_kubeconfig(tmp_path / way, api, user)) as client:
                await client.list(PODS)
                api.token = SECOND
                file.write_text(SECOND)
                await asyncio.gather(*(client.list(PODS) for _ in range(20)))
                watch = Watch(client, PODS)
                following = asyncio.create_task(watch.run())
                await watch.wait_synced()
                following.cancel()

    _with_server(play)
    assert asked.read_text().split() == ["asked"] * 2, "not by each request"


def test_a_missing_configuration_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AliquotError, match="--kubeconfig"):
        connect(tmp_path / "missing")


@pytest.mark.parametrize("content", ["not: [yaml", "a word", "clusters: 5", "{}"])
def test_an_invalid_kubeconfig_is_reported_with_its_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "invalid"
    file.write_text(content)
    with pytest.raises(AliquotError, match=r"to the API server: .*invalid") as found:
        connect(file)
    assert "--kubeconfig" in str(found.value.hint)


def _with_server(play: object) -> None:
    async def run() -> None:
        api = FakeApi()
        async with api.serving(), api.client() as client:
            await play(client, api)  # type: ignore[operator]

    asyncio.run(run())

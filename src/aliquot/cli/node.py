"""`aliquot node`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aliquot.cli.on_cluster import Kubeconfig, needs_extra, split_names
from aliquot.model import Cdi, Unjoined
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from aliquot.kubernetes.node.grants.swap import NodeSwap

EXAMPLES = (
    "aliquot node --node-name worker-1 --kubeconfig /etc/kubernetes/agent.conf",
    "aliquot node --simulate h100:4 --shares 3",
    "aliquot node --names aliquot,tencent",
)


def node(  # noqa: PLR0913, PLR0917 - one for each option
    node_name: Annotated[
        str, typer.Option(envvar="NODE_NAME", help="The name of this node in the cluster.")
    ] = "",
    names: Annotated[
        str,
        typer.Option(
            metavar="PRESETS",
            envvar="ALIQUOT_NAMES",
            help="The resource names that pods may use: aliquot, tencent, tuya, nvidia or aliyun; "
            "several separated by commas.",
        ),
    ] = "aliquot",
    shares: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            envvar="ALIQUOT_SHARES",
            help="How many containers share a shared GPU, each with an equal share of its memory.",
        ),
    ] = 2,
    simulate: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL:COUNT",
            envvar="ALIQUOT_SIMULATE",
            help="Use simulated GPUs instead of this machine's, for example h100:8.",
        ),
    ] = None,
    state: Annotated[
        Path,
        typer.Option(envvar="ALIQUOT_STATE", help="The arbiter's directory, which has all grants."),
    ] = Path("/run/aliquot"),
    home: Annotated[
        Path,
        typer.Option(
            envvar="ALIQUOT_HOME",
            help="The directory that outlives a restart of the node. It has the checkpoint of "
            "pods' grants, and the libraries that containers get. The kubelet must see it, and "
            "--state, at the same paths.",
        ),
    ] = Path("/var/lib/aliquot"),
    kubelet_dir: Annotated[
        Path,
        typer.Option(
            envvar="KUBELET_DIR",
            help="The kubelet's directory, which has device-plugins and pod-resources.",
        ),
    ] = Path("/var/lib/kubelet"),
    node_root: Annotated[
        Path,
        typer.Option(
            envvar="ALIQUOT_NODE_ROOT", help="Where the agent sees the node's file system."
        ),
    ] = Path("/"),
    driver_root: Annotated[
        Path | None,
        typer.Option(
            envvar="ALIQUOT_DRIVER_ROOT",
            help="The node's folder in which its driver is installed. Without it the agent looks "
            "in /, in /run/nvidia/driver (NVIDIA's GPU Operator) and in "
            "/home/kubernetes/bin/nvidia (GKE).",
        ),
    ] = None,
    compat: Annotated[
        Path | None,
        typer.Option(
            envvar="ALIQUOT_COMPAT",
            help="The node's folder with NVIDIA's forward-compatibility package, for images that "
            "are built with a newer CUDA than the node's driver: /usr/local/cuda/compat. All "
            "containers then use its CUDA library.",
        ),
    ] = None,
    unjoined: Annotated[
        Unjoined,
        typer.Option(
            help="What an arbiter that the agent starts does with a process in a container that "
            "uses the container's GPU past Aliquot's libraries: report it, or end it."
        ),
    ] = Unjoined.REPORT,
    cdi: Annotated[
        Cdi,
        typer.Option(
            envvar="ALIQUOT_CDI",
            help="Whether containers get their GPUs as CDI devices. auto: if the Node object says "
            "that the runtime has CDI switched on (containerd 2.0, CRI-O 1.28 or newer). always: "
            "also with containerd 1.7, whose configuration must have enable_cdi.",
        ),
    ] = Cdi.AUTO,
    cdi_dir: Annotated[
        Path, typer.Option(help="A directory in which the runtime looks for CDI specs.")
    ] = Path("/var/run/cdi"),
    model_strength: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=NUMBER",
            show_default=False,
            help="The strength of GPUs of a model, instead of the known or reported one; an A100 "
            "has 100. Give it several times for several.",
        ),
    ] = None,
    node_strength: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE=NUMBER",
            show_default=False,
            help="The strength of all GPUs of a node, before that of their model. Those of other "
            "nodes have no effect.",
        ),
    ] = None,
    idle_after: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Report containers that use none of their GPUs for so long: an event Idle on the "
            "pod. 0: report none.",
        ),
    ] = "1h",
    host_memory: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            show_default="none",
            help="Memory of the host for what leaves the GPUs from containers with the annotation "
            "aliquot.io/swap, for example 64GiB. It belongs to no pod.",
        ),
    ] = None,
    park_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION[,always]|never",
            show_default="never",
            help="After how long without GPU work the memory of containers without the annotation "
            "aliquot.io/park-after leaves.",
        ),
    ] = None,
    overcommit: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=1.0,
            max=10.0,
            help="How many times the memory of a GPU the slices of pods with the annotation "
            "aliquot.io/swap may have together, in turns. The label aliquot.io/overcommit of the "
            "node comes before it. Needs --host-memory.",
        ),
    ] = 1.0,
    kubeconfig: Kubeconfig = None,
    host: Annotated[
        str, typer.Option(help="The address on which to serve metrics and probes.")
    ] = "0.0.0.0",  # noqa: S104
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port on which to serve metrics and probes.")
    ] = 9440,
    *,
    dra: Annotated[
        bool,
        typer.Option(
            "--dra",
            help="Offer the GPUs to resource claims by dynamic resource allocation (DRA), and not "
            "by device plugins. Needs Kubernetes 1.36 and CDI.",
        ),
    ] = False,
    scheduled: Annotated[
        bool,
        typer.Option(
            "--scheduled",
            help="With --dra: a taint keeps all schedulers but Aliquot's from the devices. Needs "
            "`aliquot scheduler --resource-claims`.",
        ),
    ] = False,
    pods_by_gpunode: Annotated[
        bool,
        typer.Option(
            "--pods-by-gpunode",
            help="Read no pods of the API server: `aliquot scheduler --pods-by-gpunode` writes "
            "those of this node into its GPUNode.",
        ),
    ] = False,
    swap: Annotated[
        bool,
        typer.Option(
            "--swap",
            help="Let the memory of containers leave their GPU also without the annotation, where "
            "that is possible. Needs --host-memory.",
        ),
    ] = False,
) -> None:
    """Run the agent of a Kubernetes node: containers get its GPUs.

    The agent offers whole, shared and sliced GPUs to the kubelet, runs the node's arbiter, makes a
    grant for each container, and publishes the node's GPUs in its GPUNode object.

    It serves /metrics for Prometheus, the probes /livez and /readyz, and /healthz with all checks.
    """
    import asyncio  # noqa: PLC0415 - imported when needed

    if not node_name:
        raise InvalidValueError(
            "the name of this node is missing", "Give --node-name, or set NODE_NAME."
        )
    if dra and cdi is Cdi.NEVER:
        raise InvalidValueError("--dra needs CDI", "Leave out --cdi, or give --cdi always.")
    if scheduled and not dra:
        raise InvalidValueError(
            "--scheduled needs --dra", "Give --dra too, or leave out --scheduled."
        )
    with needs_extra():
        from aliquot.kubernetes.api.log import set_up_log  # noqa: PLC0415 - needs the extra
        from aliquot.kubernetes.node.agent import run_agent  # noqa: PLC0415
        from aliquot.kubernetes.node.machine import NodeOptions  # noqa: PLC0415
    from aliquot.devices import parse_shape  # noqa: PLC0415
    from aliquot.kubernetes.api.presets import choose_presets  # noqa: PLC0415
    from aliquot.model import parse_duration  # noqa: PLC0415
    from aliquot.model.strength import StrengthOverrides, parse_override  # noqa: PLC0415

    options = NodeOptions(
        node=node_name,
        presets=choose_presets(split_names(names)),
        shares=shares,
        shape=parse_shape(simulate) if simulate else None,
        state=state.absolute(),
        home=home.absolute(),
        kubelet=kubelet_dir,
        node_root=node_root,
        driver_root=driver_root,
        compat=compat.absolute() if compat else None,
        unjoined=unjoined,
        cdi=cdi,
        cdi_dir=cdi_dir.absolute(),
        kubeconfig=kubeconfig,
        host=host,
        port=port,
        strengths=StrengthOverrides(
            own=dict(map(parse_override, node_strength or ())).get(node_name),
            models=tuple(map(parse_override, model_strength or ())),
        ),
        idle_seconds=parse_duration(idle_after),
        swap=_node_swap(host_memory, park_after, overcommit, swap=swap),
        dra=dra,
        scheduled=scheduled,
        pods_by_gpunode=pods_by_gpunode,
    )
    set_up_log()
    if asyncio.run(run_agent(options)):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _node_swap(
    host_memory: str | None, park_after: str | None, overcommit: float, *, swap: bool
) -> NodeSwap:
    from aliquot.kubernetes.node.grants.swap import NodeSwap  # noqa: PLC0415 - needs the extra
    from aliquot.model import parse_amount  # noqa: PLC0415
    from aliquot.model.parking_rule import parse_parking_rule  # noqa: PLC0415
    from aliquot.model.request import SwapDefault  # noqa: PLC0415

    size = 0 if host_memory is None else parse_amount(host_memory).bytes
    if size is None or ((swap or overcommit > 1) and not size):
        raise InvalidValueError(
            f"--host-memory {host_memory} is no amount of memory"
            if size is None
            else f"{'--swap' if swap else '--overcommit'} needs --host-memory",
            "Give for example --host-memory 64GiB.",
        )
    rule = None if park_after is None else parse_parking_rule(park_after)
    return NodeSwap(size, SwapDefault(swap, rule), overcommit)

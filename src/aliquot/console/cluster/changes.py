"""What users change: written with the user's own token, so the API server decides.

An elastic job is suspended, resumed and scaled by its `spec`; a running pod's slices are resized by
its annotations, and the node's agent says in events what came of it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aliquot.console.problems import ProblemError
from aliquot.kubernetes.api.elasticjob import JOBS
from aliquot.kubernetes.api.names import COMPUTE, MEMORY, POLICY, PRIORITY
from aliquot.kubernetes.api.objects import PODS, DeleteOptions, Preconditions
from aliquot.model import parse_amount, parse_share
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Resource

_ANNOTATIONS = {"memory": MEMORY, "compute": COMPUTE, "policy": POLICY, "priority": PRIORITY}


async def request(client: Client, kind: str, namespace: str, name: str, verb: str) -> str:
    """Suspend, resume or cancel; what was written, in a sentence."""
    if kind == "elasticjobs" and verb in {"suspend", "resume"}:
        wanted = {"spec": {"suspend": verb == "suspend"}}
        await client.patch(JOBS, name, wanted, namespace=namespace)
        return f"elastic job {namespace}/{name}: {verb} was asked for"
    if kind in {"elasticjobs", "pods"} and verb == "cancel":
        of: Resource[Any] = JOBS if kind == "elasticjobs" else PODS
        one = await client.get(of, name, namespace)
        same = DeleteOptions(preconditions=Preconditions(one.metadata.uid))
        await client.delete(of, name, namespace, same)
        return f"{of.kind} {namespace}/{name} is deleted"
    raise ProblemError(
        HTTPStatus.CONFLICT,
        f"{kind} cannot be changed by {verb}",
        "Suspend and resume elastic jobs. Gangs end with the objects that made their pods.",
    )


async def scale(client: Client, namespace: str, name: str, workers: int) -> str:
    """Set how many workers an elastic job may have."""
    await client.patch(JOBS, name, {"spec": {"replicas": workers}}, namespace=namespace)
    return f"elastic job {namespace}/{name}: at most {workers} workers"


async def resize(client: Client, namespace: str, pod: str, body: dict[str, Any]) -> str:
    """Ask for other slices; null goes back to what the pod asked for."""
    if not body:
        raise InvalidValueError("nothing is to be changed", f"Give {', '.join(_ANNOTATIONS)}.")
    if (memory := body.get("memory")) is not None:
        parse_amount(memory)
    if (compute := body.get("compute")) is not None:
        parse_share(compute)
    notes = {_ANNOTATIONS[key]: value for key, value in body.items()}
    await client.patch(PODS, pod, {"metadata": {"annotations": notes}}, namespace=namespace)
    shown = ", ".join(f"{key} {value or 'as asked for'}" for key, value in body.items())
    return f"pod {namespace}/{pod}: {shown}; its events say what came of it"

"""The methods of the kubelet's interfaces: their paths and message types.

The kubelet dials a plugin's socket with the authority `localhost`, and we dial the kubelet's the
same way: not every server accepts the path of a socket as an authority.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
import grpc.aio

from aliquot.kubernetes.kubelet import deviceplugin_pb2 as plugin
from aliquot.kubernetes.kubelet import dra_health_pb2 as health
from aliquot.kubernetes.kubelet import dra_pb2 as dra
from aliquot.kubernetes.kubelet import pluginregistration_pb2 as registration
from aliquot.kubernetes.kubelet import podresources_pb2 as resources

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "v1beta1"
REGISTRATION = "v1beta1.Registration"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
POD_RESOURCES = "v1.PodResourcesLister"
PLUGIN_REGISTRATION = "pluginregistration.Registration"
DRA = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
DRA_TYPE, DRA_VERSION = "DRAPlugin", "v1.DRAPlugin"  # as a plugin registers itself
DRA_HEALTH = "v1alpha1.DRAResourceHealth"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

LARGEST = 64 << 20  # a node has thousands of device ids
_OPTIONS = (("grpc.max_receive_message_length", LARGEST), ("grpc.max_send_message_length", LARGEST))
# A kubelet that is just starting does not listen yet: retry soon.
_SOON = tuple(
    (f"grpc.{which}_reconnect_backoff_ms", milliseconds)
    for which, milliseconds in (("initial", 20), ("min", 20), ("max", 200))
)

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
Context = Any  # grpc.aio.ServicerContext, which has no types


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """One method of a service; `streams`: its response is a stream."""

    service: str
    name: str
    request: type[RequestT]
    response: type[ResponseT]
    streams: bool = False

    def on(self, channel: grpc.aio.Channel) -> Callable[..., Any]:
        """This method on a channel, to be called."""
        kind = channel.unary_stream if self.streams else channel.unary_unary
        called: Callable[..., Any] = kind(
            f"/{self.service}/{self.name}",
            request_serializer=_write,
            response_deserializer=_reader(self.response),
        )
        return called

    def by(self, answer: Callable[[RequestT, Context], Any]) -> Handler:
        """This method, answered by a function."""
        return Handler(self, answer)


Answer = Callable[[Any, Context], Awaitable[Any] | AsyncIterator[Any]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A method and the function that answers it."""

    method: Method[Any, Any]
    answer: Answer

    @property
    def handler(self) -> Any:
        """The handler for a gRPC server."""
        method = self.method
        kind = (
            grpc.unary_stream_rpc_method_handler
            if method.streams
            else grpc.unary_unary_rpc_method_handler
        )
        return kind(
            self.answer, request_deserializer=_reader(method.request), response_serializer=_write
        )


REGISTER = Method(REGISTRATION, "Register", plugin.RegisterRequest, plugin.Empty)
OPTIONS = Method(DEVICE_PLUGIN, "GetDevicePluginOptions", plugin.Empty, plugin.DevicePluginOptions)
LIST_AND_WATCH = Method(
    DEVICE_PLUGIN, "ListAndWatch", plugin.Empty, plugin.ListAndWatchResponse, streams=True
)
PREFERRED = Method(
    DEVICE_PLUGIN,
    "GetPreferredAllocation",
    plugin.PreferredAllocationRequest,
    plugin.PreferredAllocationResponse,
)
ALLOCATE = Method(DEVICE_PLUGIN, "Allocate", plugin.AllocateRequest, plugin.AllocateResponse)
PRE_START = Method(
    DEVICE_PLUGIN,
    "PreStartContainer",
    plugin.PreStartContainerRequest,
    plugin.PreStartContainerResponse,
)
LIST = Method(
    POD_RESOURCES, "List", resources.ListPodResourcesRequest, resources.ListPodResourcesResponse
)
GET = Method(
    POD_RESOURCES, "Get", resources.GetPodResourcesRequest, resources.GetPodResourcesResponse
)
GET_INFO = Method(PLUGIN_REGISTRATION, "GetInfo", registration.InfoRequest, registration.PluginInfo)
NOTIFY_REGISTRATION = Method(
    PLUGIN_REGISTRATION,
    "NotifyRegistrationStatus",
    registration.RegistrationStatus,
    registration.RegistrationStatusResponse,
)
PREPARE = Method(
    DRA,
    "NodePrepareResources",
    dra.NodePrepareResourcesRequest,
    dra.NodePrepareResourcesResponse,
)
UNPREPARE = Method(
    DRA,
    "NodeUnprepareResources",
    dra.NodeUnprepareResourcesRequest,
    dra.NodeUnprepareResourcesResponse,
)
WATCH_HEALTH = Method(
    DRA_HEALTH,
    "NodeWatchResources",
    health.NodeWatchResourcesRequest,
    health.NodeWatchResourcesResponse,
    streams=True,
)


def dial(socket: Path) -> grpc.aio.Channel:
    """A channel to a unix socket; the first call opens it."""
    options = (*_OPTIONS, *_SOON, ("grpc.default_authority", "localhost"))
    return grpc.aio.insecure_channel(f"unix:{socket}", options=options)


def server(*handlers: Handler) -> grpc.aio.Server:
    """A server of these methods, which does not listen yet."""
    made = grpc.aio.server(options=_OPTIONS)
    by_service: dict[str, dict[str, Any]] = {}
    for one in handlers:
        by_service.setdefault(one.method.service, {})[one.method.name] = one.handler
    made.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(service, methods)
            for service, methods in by_service.items()
        )
    )
    return made


def listen(made: grpc.aio.Server, socket: Path) -> None:
    """Let a server listen on a unix socket; an old file of that name is removed."""
    socket.unlink(missing_ok=True)
    made.add_insecure_port(f"unix:{socket}")


def _write(message: Any) -> bytes:
    written: bytes = message.SerializeToString()
    return written


def _reader(kind: type[Any]) -> Callable[[bytes], Any]:
    read: Callable[[bytes], Any] = kind.FromString
    return read

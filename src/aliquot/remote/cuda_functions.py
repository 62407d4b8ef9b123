"""The functions of `torch.cuda` that would ask a driver: answered by the executor, or refused.

Every stream is the executor's one stream, in order: correct, and without overlap.
"""

from __future__ import annotations

import base64
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class Asks(Protocol):
    """What can put a question to the executor."""

    def ask(self, question: str, **values: Any) -> Any:
        """Return the answer, or raise the executor's error."""


def replace(client: Asks, torch: ModuleType, hello: dict[str, Any]) -> None:
    """Replace what asks a driver, in this process.

    Each name gets a function of its own: torch._dynamo has one rule for each function object.
    """
    replaced = {
        **_device_functions(hello),
        **_asking(client, torch),
        **_stream_classes(client, torch),
    }
    cuda = torch.cuda
    for name, function in replaced.items():
        setattr(cuda, name, function)
    for module in (cuda.random, cuda.memory, cuda.streams):
        for name in replaced.keys() & vars(module).keys():
            setattr(module, name, replaced[name])
    cuda._initialized = True  # noqa: SLF001
    core = torch._C  # noqa: SLF001
    core._cuda_getDeviceCount = lambda: 1  # noqa: SLF001
    core._cuda_getDevice = lambda: 0  # noqa: SLF001
    core._cuda_setDevice = lambda device: _only_the_first(device)  # noqa: SLF001, PLW0108 - see above
    core._cuda_maybeExchangeDevice = lambda _device: 0  # noqa: SLF001
    core._cuda_exchangeDevice = lambda _device: 0  # noqa: SLF001
    core._cuda_isInBadFork = lambda: replaced["_is_in_bad_fork"]()  # noqa: SLF001, PLW0108
    _refuse(torch)
    _load_to_cuda(torch)


def _only_the_first(device: Any) -> None:
    index = device if isinstance(device, int) else getattr(device, "index", None)
    if index not in {None, 0, -1}:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: {index}; a remote slice has one GPU"
        )


class _DeviceContext:
    """`with torch.cuda.device(...)`: there is one device."""

    def __init__(self, device: Any = None) -> None:
        _only_the_first(device)
        self.idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass


class _DeviceOf(_DeviceContext):
    """`with torch.cuda.device_of(tensor)`."""

    def __init__(self, _tensor: Any) -> None:
        super().__init__()


def _device_functions(hello: dict[str, Any]) -> dict[str, Any]:
    properties = SimpleNamespace(**hello["properties"])
    capability = (properties.major, properties.minor)
    process = os.getpid()
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda function, **_: function(),
        "_is_in_bad_fork": lambda: os.getpid() != process,
        "_exchange_device": lambda _device: 0,
        "_maybe_exchange_device": lambda _device: 0,
        "set_device": lambda device: _only_the_first(device),  # noqa: PLW0108
        "device": _DeviceContext,
        "device_of": _DeviceOf,
        "get_device_name": lambda device=None: properties.name,  # noqa: ARG005
        "get_device_capability": lambda device=None: capability,  # noqa: ARG005
        "get_device_properties": lambda device=None: properties,  # noqa: ARG005
        "get_arch_list": lambda: list(hello["architectures"]),
        "is_bf16_supported": lambda including_emulation=True: capability >= (8, 0),  # noqa: ARG005
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda _device, _peer: False,
        "ipc_collect": lambda: None,
    }


def _asking(client: Asks, torch: ModuleType) -> dict[str, Callable[..., Any]]:
    def synchronize(device: Any = None) -> None:
        _only_the_first(_index(device))
        client.ask("synchronize")

    def get_rng_state(device: Any = None) -> Any:
        _only_the_first(_index(device))
        state = bytearray(base64.b64decode(client.ask("random_state")))
        return torch.frombuffer(state, dtype=torch.uint8).clone()

    def set_rng_state(new_state: Any, device: Any = None) -> None:
        _only_the_first(_index(device))
        state = base64.b64encode(bytes(new_state.cpu().tolist())).decode()
        client.ask("set_random_state", state=state)

    def set_rng_states(new_states: list[Any]) -> None:
        for one in new_states:
            set_rng_state(one)

    def manual_seed(seed: int) -> None:
        client.ask("seed", seed=int(seed))

    def seed() -> None:
        manual_seed(int.from_bytes(os.urandom(7), "little"))

    def memory(name: str) -> Callable[..., Any]:
        def ask(device: Any = None) -> Any:
            _only_the_first(_index(device))
            answer = client.ask("memory", name=name)
            return tuple(answer) if isinstance(answer, list) else answer

        return ask

    numbers = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    others = ("mem_get_info", "memory_stats", "reset_peak_memory_stats", "empty_cache")
    return {
        **{name: memory(name) for name in (*numbers, *others)},
        "synchronize": synchronize,
        "get_rng_state": get_rng_state,
        "get_rng_state_all": lambda: [get_rng_state()],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": set_rng_states,
        "manual_seed": manual_seed,
        "manual_seed_all": lambda seed: manual_seed(seed),  # noqa: PLW0108
        "seed": seed,
        "seed_all": lambda: seed(),  # noqa: PLW0108
        "initial_seed": lambda: client.ask("initial_seed"),
    }


def _index(device: Any) -> Any:
    if isinstance(device, str):
        _, _, number = device.partition(":")
        return int(number) if number else None
    return device


def _stream_classes(client: Asks, torch: Any) -> dict[str, Any]:  # noqa: C901 - three small classes
    class Event:
        """A moment of the one stream; times are the client's."""

        def __init__(self, *_flags: Any, **_named: Any) -> None:
            self._at: float | None = None

        def record(self, _stream: Any = None) -> None:
            client.ask("synchronize")
            self._at = time.perf_counter()

        def synchronize(self) -> None:
            client.ask("synchronize")

        def wait(self, _stream: Any = None) -> None:
            pass

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Event) -> float:
            if self._at is None or end._at is None:
                raise RuntimeError("both events must be recorded first")
            return (end._at - self._at) * 1000

    class Stream(torch.Stream):  # type: ignore[misc]
        """The executor's one stream."""

        cuda_stream = 0

        def __new__(cls, *_arguments: Any, **_named: Any) -> Any:
            return super().__new__(cls, stream_id=0, device_index=0, device_type=1)

        def __init__(self, *_arguments: Any, **_named: Any) -> None:
            pass

        def synchronize(self) -> None:
            client.ask("synchronize")

        def wait_stream(self, _stream: Any) -> None:
            pass

        def wait_event(self, _event: Any) -> None:
            pass

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record()
            return event

        def query(self) -> bool:
            client.ask("synchronize")
            return True

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

    class StreamContext:
        """`with torch.cuda.stream(...)`: there is one stream."""

        def __init__(self, stream: Any = None) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_error: object) -> None:
            pass

    stream = Stream()
    return {
        "Event": Event,
        "Stream": Stream,
        "StreamContext": StreamContext,
        "stream": lambda stream: StreamContext(stream),  # noqa: PLW0108
        "set_stream": lambda _stream: None,
        "current_stream": lambda device=None: stream,  # noqa: ARG005
        "default_stream": lambda device=None: stream,  # noqa: ARG005
    }


def _refusal(what: str, instead: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any, **_named: Any) -> Any:
        raise NotImplementedError(f"{what} is not supported on a remote GPU: {instead}")

    return refuse


def _refuse(torch: Any) -> None:
    """What would hand out an address, or run code that is not here yet."""
    dlpack = _refusal("DLPack of a tensor", "its memory is on another machine; use .cpu() first")
    core, tensor = torch._C, torch.Tensor  # noqa: SLF001

    def of_cuda(refuse: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *arguments: Any, **named: Any) -> Any:
            remote = isinstance(first, tensor) and first.device.type == "cuda"
            return (refuse if remote else own)(first, *arguments, **named)

        return call

    tensor.__dlpack__ = of_cuda(dlpack, tensor.__dlpack__)
    core._to_dlpack = of_cuda(dlpack, core._to_dlpack)  # noqa: SLF001
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = core._to_dlpack  # noqa: SLF001
    own = tensor.__cuda_array_interface__
    array = _refusal(
        "the CUDA array interface", "its memory is on another machine; use .cpu() first"
    )
    tensor.__cuda_array_interface__ = property(of_cuda(array, own.fget))
    ipc = _refusal("CUDA IPC", "send the tensor as .cpu()")
    torch.UntypedStorage._share_cuda_ = ipc
    torch.compile = _refusal("torch.compile", "run the program in eager mode")
    for name in ("CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle"):
        setattr(torch.cuda, name, _refusal("a CUDA graph", "run the program without it"))


def _load_to_cuda(torch: ModuleType) -> None:
    """torch.load makes storages by PyTorch's allocator for CUDA, which is not here."""

    def tag(storage: Any) -> str | None:
        return "cuda:0" if storage.device.type == "cuda" else None

    def load(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        _only_the_first(_index(location))
        untyped = storage.untyped() if hasattr(storage, "untyped") else storage
        host = torch.empty(0, dtype=torch.uint8).set_(untyped)
        return host.cuda().untyped_storage()

    torch.serialization.register_package(5, tag, load)

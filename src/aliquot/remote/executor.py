"""The process beside the GPU that runs one client's operators, in a grant.

It reads messages from one socket in order and ends when the socket does. Nothing else outlives a
client: its tensors go with the process.

- Each view is made from its storage only if the storage has all of its bytes.
- The first call of a signature is answered with the layouts of its results, and later calls are not
  answered. Their results are compared with the first ones, aliases included.
- An operator that fails when nobody waits poisons the storages that it would have written: until
  they are freed, what reads them fails too. The client's next wait raises the error.

Start it with `bootstrap.py executor SOCKET DEVICE`. It needs PyTorch, and nothing of Aliquot but
this package.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

import torch

from aliquot.remote import operators, wire
from aliquot.remote.control import Controls
from aliquot.remote.session import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_READ_AHEAD = 1 << 18
_DTYPES = {code: getattr(torch, name) for code, (name, _) in wire.DTYPES.items()}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


_OTHERWISE = "its results lie otherwise than those of an earlier call with such arguments"


class Poisoned(Exception):  # noqa: N818 - it is no error of its own
    """An argument was to be written by an operator that failed."""


class HeldStorage:
    """A storage, and the views of it that were made; or why there is none."""

    __slots__ = ("error", "identity", "storage", "views")

    def __init__(self, storage: Any, error: str | None = None) -> None:
        self.storage = storage
        self.identity = None if storage is None else storage._cdata  # noqa: SLF001
        self.views: dict[wire.Layout, Any] = {}
        self.error = error


class Prepared:
    """A signature that is ready to be called, and what its first call returned."""

    def __init__(self, signature: wire.Signature, allowed: frozenset[str]) -> None:
        self.name = signature.operator
        full = ".".join(part for part in (signature.operator, signature.overload) if part)
        if full not in allowed:
            raise wire.WireError(f"{full} is not on the list of operators")
        schema = torch._C._get_schema(signature.operator, signature.overload)  # noqa: SLF001
        self.call = operators.overload(signature.operator, signature.overload)
        if len(signature.arguments) != len(schema.arguments):
            raise wire.WireError(f"{full} has {len(schema.arguments)} arguments")
        self.slots = signature.slots
        self.names = [one.name for one in schema.arguments if one.kwarg_only]
        self.positional = len(schema.arguments) - len(self.names)
        self.arguments = signature.arguments
        pairs = zip(schema.arguments, signature.arguments, strict=True)
        self.written = sorted(
            slot.position
            for one, value in pairs
            if one.alias_info is not None and one.alias_info.is_write
            for slot in _slots_in(value)
        )
        self.same = [
            one.alias_info is not None and one.alias_info.is_write for one in schema.returns
        ]
        self.learnt: CallOutcome | None = None


class CallOutcome:
    """The results of a call: how they lie, comparable, and the storages that are new."""

    __slots__ = ("changes", "fresh", "returns")

    def __init__(self, returns: list[Any], changes: list[Any], fresh: list[Any]) -> None:
        self.returns = returns
        self.changes = changes
        self.fresh = fresh

    def agrees(self, other: CallOutcome | None) -> bool:
        """Whether the results lie in the same way."""
        return other is not None and self.returns == other.returns and self.changes == other.changes


def _slots_in(value: Any) -> list[wire.TensorSlot]:
    if isinstance(value, wire.TensorSlot):
        return [value]
    if isinstance(value, list):
        return [slot for item in value for slot in _slots_in(item)]
    return []


class Executor:
    """The storages of one client, and what its messages do to them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parser = wire.Parser()
        self._entries: dict[int, HeldStorage] = {}
        self._prepared: dict[int, Prepared] = {}
        self._allowed = frozenset(operators.sent(device.type))
        self._error: tuple[str, str] | None = None  # of an operator that nobody waited for
        self._controls = Controls(device)

    def answer(  # noqa: C901 - one case for each message
        self, kind: wire.MessageKind, body: memoryview
    ) -> Sequence[bytes | memoryview]:
        """Do what a message says; the parts of the answer, none if the client waits for none."""
        match self._parser.message(kind, body):
            case wire.Call() as call:
                return self._call(call)
            case wire.Free(storages):
                for storage in storages:
                    self._entries.pop(storage, None)
            case wire.Write() as write:
                self._write(write)
            case wire.Read(storage, layout):
                return self._read(storage, layout)
            case wire.Flags() as flags:
                self._controls.apply(flags.settings, _DTYPES[flags.default_dtype])
            case wire.ControlMessage(content):
                if content.get("ask") == "synchronize" and self._error:
                    return self._raised()
                return self._controls.answer(content)
            case wire.Define():
                if kind is wire.MessageKind.RESET:
                    self._prepared.clear()
        return ()

    def _raised(self) -> list[bytes | memoryview]:
        assert self._error is not None  # noqa: S101 - its callers have looked
        error, self._error = self._error, None
        return wire.error_answer(*error)

    def _view(self, storage: int, layout: wire.Layout) -> Any:
        entry = self._entries.get(storage)
        if entry is None:
            raise wire.WireError(f"storage {storage} does not exist")
        if entry.error is not None:
            raise Poisoned(entry.error)
        view = entry.views.get(layout)
        if view is None:
            if layout.reach > entry.storage.nbytes():
                raise RuntimeError(
                    f"a view of {layout.reach} bytes is larger than its storage of "
                    f"{entry.storage.nbytes()} bytes"
                )
            view = torch.empty(0, dtype=_DTYPES[layout.dtype], device=entry.storage.device)
            view.set_(entry.storage, layout.offset, layout.sizes, layout.strides)
            entry.views[layout] = view
        return view

    def _call(self, call: wire.Call) -> Sequence[bytes | memoryview]:
        prepared = self._prepared.get(id(call.signature))
        if prepared is None:
            prepared = Prepared(call.signature, self._allowed)
            self._prepared[id(call.signature)] = prepared
        if not call.wait and prepared.learnt is None:
            raise wire.WireError(f"{prepared.name} is called without waiting before it was learnt")
        self._check_new(call, prepared)
        if call.wait and self._error:
            return self._raised()
        try:
            outcome = self._run(prepared, call)
            if not call.wait and not outcome.agrees(prepared.learnt):
                raise RuntimeError(_OTHERWISE)  # noqa: TRY301 - it fails like any operator
        except wire.WireError:
            raise
        except Exception as error:  # noqa: BLE001 - an operator may raise anything
            return self._failed(prepared, call, error)
        self._keep(call, outcome)
        if not call.wait:
            return ()
        if prepared.learnt is None:
            prepared.learnt = CallOutcome(outcome.returns, outcome.changes, [])
        return wire.answer(wire.AnswerKind.RESULTS, _encoded(outcome))

    def _failed(
        self, prepared: Prepared, call: wire.Call, error: Exception
    ) -> Sequence[bytes | memoryview]:
        """Answer with an operator's error, or poison what it would have written."""
        for index in prepared.written:  # it may have changed how they lie before it failed
            if (entry := self._entries.get(call.storages[index])) is not None:
                entry.views.clear()
        poisoned = isinstance(error, Poisoned)
        kind, text = ("RuntimeError", str(error)) if poisoned else _described(error)
        if call.wait:
            return wire.error_answer(kind, text)
        if not poisoned:
            text = f"{prepared.name} failed on the remote GPU, after the call had returned: {text}"
            self._error = self._error or (kind, text)
        self._poison(prepared, call, text)
        return ()

    def _check_new(self, call: wire.Call, prepared: Prepared) -> None:
        """The ids of a call's results are not in use."""
        count = 1 if prepared.learnt is None else _fresh_count(prepared.learnt)
        if any(call.first + i in self._entries for i in range(count)):
            raise wire.WireError(f"storage {call.first} exists already")

    def _keep(self, call: wire.Call, outcome: CallOutcome) -> None:
        for i, storage in enumerate(outcome.fresh):
            self._entries[call.first + i] = HeldStorage(storage)

    def _poison(self, prepared: Prepared, call: wire.Call, text: str) -> None:
        assert prepared.learnt is not None  # noqa: S101 - only calls that nobody waits for
        for i in range(_fresh_count(prepared.learnt)):
            self._entries[call.first + i] = HeldStorage(None, text)
        for index in prepared.written:
            entry = self._entries[call.storages[index]]
            entry.error = entry.error or text

    def _run(self, prepared: Prepared, call: wire.Call) -> CallOutcome:
        views = [
            self._view(storage, slot.layout)
            for storage, slot in zip(call.storages, prepared.slots, strict=True)
        ]
        values = [self._value(one, views, call.numbers) for one in prepared.arguments]
        count = prepared.positional
        made = prepared.call(
            *values[:count], **dict(zip(prepared.names, values[count:], strict=True))
        )
        results = made if isinstance(made, tuple) else (made,) if prepared.same else ()
        if len(results) != len(prepared.same):
            raise RuntimeError(f"{len(results)} results instead of {len(prepared.same)}")
        changes = self._changes(prepared, call, views)
        reader = _Results(
            {self._entries[one].identity: i for i, one in reversed([*enumerate(call.storages)])}
        )
        returns = [
            reader.argument() if same else reader.value(result)
            for result, same in zip(results, prepared.same, strict=True)
        ]
        return CallOutcome(returns, changes, reader.fresh)

    def _changes(self, prepared: Prepared, call: wire.Call, views: list[Any]) -> list[Any]:
        """Arguments that the operator has given another layout or a larger storage."""
        changes = []
        for index in prepared.written:
            view, layout, entry = (
                views[index],
                prepared.slots[index].layout,
                self._entries[call.storages[index]],
            )
            if (
                view.shape != layout.sizes
                or view.stride() != layout.strides
                or view.storage_offset() != layout.offset
            ):
                changes.append((index, *_shape(view)))
                entry.views.clear()
                entry.storage = view.untyped_storage()
                entry.identity = entry.storage._cdata  # noqa: SLF001
        return changes

    def _value(self, argument: Any, views: list[Any], numbers: tuple[float, ...]) -> Any:
        kind = type(argument)
        if kind is wire.TensorSlot:
            return views[argument.position]
        if kind is wire.Varying:
            return numbers[argument.position]
        if kind is list:
            return [self._value(one, views, numbers) for one in argument]
        if kind is wire.DeviceArgument:
            return self._device if argument.remote else torch.device("cpu")
        return argument

    def _write(self, write: wire.Write) -> None:
        flat = (
            torch.frombuffer(write.data, dtype=torch.uint8)
            if len(write.data)
            else torch.empty(0, dtype=torch.uint8)
        )
        given = flat.view(_DTYPES[write.layout.dtype]).view(write.layout.sizes)
        if write.on_host:
            if write.storage in self._entries:
                raise wire.WireError(f"storage {write.storage} exists already")
            if write.layout.offset or not _is_contiguous(write.layout):
                raise wire.WireError("HOST: its tensor has gaps")
            self._entries[write.storage] = HeldStorage(given.clone().untyped_storage())
            return
        try:
            self._view(write.storage, write.layout).copy_(given)
        except Poisoned:
            return
        except wire.WireError:
            raise
        except Exception as error:  # noqa: BLE001 - as for an operator
            kind, text = _described(error)
            text = f"a copy to the remote GPU failed, after the call had returned: {text}"
            self._error = self._error or (kind, text)
            self._entries[write.storage].error = text

    def _read(self, storage: int, layout: wire.Layout) -> Sequence[bytes | memoryview]:
        if self._error:
            return self._raised()
        try:
            view = self._view(storage, layout)
            flat = view.cpu().contiguous().reshape(-1).view(torch.uint8)
        except Poisoned as error:
            return wire.error_answer("RuntimeError", str(error))
        except wire.WireError:
            raise
        except Exception as error:  # noqa: BLE001 - as for an operator
            return wire.error_answer(*_described(error))
        return wire.answer(wire.AnswerKind.DATA, _bytes_of(flat))


class _Results:
    """Reads the results of a call, and finds out which storages are new."""

    def __init__(self, slots: dict[int | None, int]) -> None:
        self._slots = slots  # by the identity of their storage
        self._seen: dict[int, int] = {}
        self._count = 0
        self.fresh: list[Any] = []

    def argument(self) -> Any:
        """A result that is one of the arguments: the client has it."""
        self._count += 1
        return ("S",)

    def value(self, result: Any) -> Any:  # noqa: PLR0911 - one for each kind
        if isinstance(result, (list, tuple)):
            return ("L", [self._tensor(one) for one in result])
        if isinstance(result, torch.Tensor):
            return self._tensor(result)
        self._count += 1
        if result is None:
            return ("U",)
        if isinstance(result, bool):
            return ("B", result)
        if isinstance(result, int):
            return ("I", result)
        if isinstance(result, float):
            return ("F", struct.pack("<d", result))
        if isinstance(result, complex):
            return ("C", struct.pack("<dd", result.real, result.imag))
        raise NotImplementedError(
            f"a result of type {type(result).__name__} is not supported on a remote GPU"
        )

    def _tensor(self, tensor: Any) -> Any:
        position = self._count
        self._count += 1
        if tensor is None:
            return ("U",)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype not in _CODES:
            raise NotImplementedError(
                f"a result of layout {tensor.layout} and dtype {tensor.dtype} is not supported"
                " on a remote GPU"
            )
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        storage = tensor.untyped_storage()
        identity = storage._cdata  # noqa: SLF001 - the one identity that a storage has
        if identity in self._slots:
            place = (1, self._slots[identity])
        elif identity in self._seen:
            place = (2, self._seen[identity])
        else:
            place = (0, len(self.fresh))
            self.fresh.append(storage)
            self._seen[identity] = position
        return ("T", place, *_shape(tensor))


def _shape(tensor: Any) -> tuple[Any, ...]:
    return (
        _CODES[tensor.dtype],
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
    )


def _is_contiguous(layout: wire.Layout) -> bool:
    step = 1
    for size, stride in zip(reversed(layout.sizes), reversed(layout.strides), strict=True):
        if size > 1 and stride != step:
            return layout.bytes == 0
        step *= size
    return True


def _fresh_count(outcome: CallOutcome) -> int:
    made = [item for one in outcome.returns for item in (one[1] if one[0] == "L" else [one])]
    return sum(item[0] == "T" and item[1][0] == 0 for item in made)


def _encoded(outcome: CallOutcome) -> bytes:
    parts = [struct.pack("<H", len(outcome.returns))]
    for one in outcome.returns:
        if one[0] == "L":
            parts.append(struct.pack("<BI", 1, len(one[1])))
            parts.extend(_encoded_result(item) for item in one[1])
        else:
            parts += [b"\0", _encoded_result(one)]
    parts.append(struct.pack("<I", len(outcome.changes)))
    for index, *shape in outcome.changes:
        parts += [struct.pack("<I", index), _encoded_shape(shape)]
    return b"".join(parts)


def _encoded_result(result: Any) -> bytes:
    kind = bytes(result[0], "ascii")
    match result[0]:
        case "T":
            return kind + struct.pack("<BI", *result[1]) + _encoded_shape(result[2:])
        case "I":
            return kind + struct.pack("<q", result[1])
        case "B":
            return kind + struct.pack("<B", result[1])
        case "F" | "C":
            return kind + bytes(result[1])
        case _:
            return kind


def _encoded_shape(shape: Sequence[Any]) -> bytes:
    dtype, sizes, strides, offset, storage = shape
    return wire.shape_bytes(dtype, sizes, strides, offset) + struct.pack("<Q", storage)


def _bytes_of(flat: Any) -> memoryview | bytes:
    if not flat.numel():
        return b""
    import ctypes  # noqa: PLC0415 - numpy need not be there

    kept = (ctypes.c_char * flat.numel()).from_address(flat.data_ptr())
    return bytes(kept) if flat.numel() < _READ_AHEAD else memoryview(bytearray(kept))


def _described(error: Exception) -> tuple[str, str]:
    return type(error).__name__, str(error) or type(error).__name__


class Connection:
    """The messages of a socket, read ahead, and the answers to them."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()
        self._at = 0

    def serve(
        self, answer: Callable[[wire.MessageKind, memoryview], Sequence[bytes | memoryview]]
    ) -> None:
        """Answer messages until the other side has closed the socket."""
        while (header := self._take(wire.HEADER.size)) is not None:
            kind, length = wire.read_header(bytes(header))
            body = self._take(length)
            if body is None:
                return
            for part in answer(kind, body):
                self._socket.sendall(part)

    def _take(self, size: int) -> memoryview | None:
        """The next bytes; None if the socket has ended."""
        have = len(self._buffer) - self._at
        if have < size:
            rest = self._buffer[self._at :]
            if size > _READ_AHEAD:
                whole = bytearray(size)
                whole[:have] = rest
                self._buffer, self._at = bytearray(), 0
                view = memoryview(whole)
                while have < size:
                    got = self._socket.recv_into(view[have:])
                    if not got:
                        return None
                    have += got
                return view
            while len(rest) < size:
                more = self._socket.recv(_READ_AHEAD)
                if not more:
                    return None
                rest += more
            self._buffer, self._at = rest, 0
        taken = memoryview(self._buffer)[self._at : self._at + size]
        self._at += size
        return taken


def main(arguments: Sequence[str]) -> None:
    """Serve the socket of this number on this device."""
    die_with_parent()
    end = socket.socket(fileno=int(arguments[0]))
    device = torch.device(arguments[1])
    if device.type == "cuda":
        torch.zeros(1, device=device)
    executor = Executor(device)
    with torch.inference_mode():
        try:
            Connection(end).serve(executor.answer)
        except wire.WireError as error:
            sys.stderr.write(f"aliquot: the client of a remote GPU sent what is invalid: {error}\n")
            with contextlib.suppress(OSError):
                for part in wire.error_answer(
                    "RuntimeError", f"the executor refused a message: {error}"
                ):
                    end.sendall(part)
        except OSError:
            pass  # the client has gone
    sys.stderr.flush()
    os._exit(0)  # the driver frees a process's memory faster than its destructors

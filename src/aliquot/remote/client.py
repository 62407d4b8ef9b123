"""The Python half of a client, in the program: loads the compiled one when PyTorch is imported.

The order matters. The library registers what stands for CUDA before PyTorch asks for it, so it is
loaded before PyTorch's own Python half. The kernels replace PyTorch's after that.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import AliquotError
from aliquot.remote import greeting, library, wire

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


# What aliquot_remote_ask returns.
_OUT_OF_MEMORY = 2
_ERRORS = {3: IndexError, 4: ValueError, 5: TypeError, 6: NotImplementedError}


class WaitForTorch:
    """An import hook that acts when the program imports torch, not when it looks for it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch, with a loader that makes its `cuda` remote; None for other names."""
        if name != "torch":
            return None
        others = (one.find_spec(name, path, target) for one in sys.meta_path if one is not self)
        spec = next((one for one in others if one is not None), None)
        if spec is None or spec.origin is None or spec.loader is None:
            return None
        folder, execute = Path(spec.origin).parent, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                client = TorchClient(folder)
                execute(module)
                client.install(module)
            except AliquotError as error:
                raise ImportError(f"aliquot: {error}") from error
            with suppress(ValueError):
                sys.meta_path.remove(self)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class TorchClient:
    """The library, and the connection to the executor of this process."""

    def __init__(self, torch: Path) -> None:
        self.version = _version(torch)
        built = library.build(torch, self.version)
        # PyTorch's own CUDA first: it would complain to be the second one.
        for name in ("libtorch_global_deps.so", "libtorch_cpu.so", "libtorch_cuda.so"):
            if (torch / "lib" / name).exists():
                ctypes.CDLL(str(torch / "lib" / name), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(built))
        self._library.aliquot_remote_register()
        self._socket: socket.socket | None = None
        self.torch: Any = None

    def install(self, torch: ModuleType) -> None:
        """Connect, compare versions and schemas, and make `cuda` of this process remote."""
        from aliquot.remote import cuda_functions, operators  # noqa: PLC0415 - they need torch

        self.torch = torch
        self._socket = _attach()
        if self._library.aliquot_remote_connect(self._socket.fileno()):
            raise greeting.RemoteError(
                "another library has made itself PyTorch's CUDA before Aliquot could",
                "Start the program without it, or without --remote.",
            )
        hello = self.ask("hello", wire=wire.VERSION, torch=self.version)
        names = [str(name) for name in hello["operators"]]
        if operators.digest(names) != hello["schemas"]:
            raise greeting.RemoteError(
                "the operators of this PyTorch differ from those of the executor's",
                "Install the same build of PyTorch on both sides.",
            )
        self._library.aliquot_remote_describe(int(hello["on_cpu"]), ctypes.c_long(hello["cudnn"]))
        self._library.aliquot_remote_install("\n".join(names).encode())
        cuda_functions.replace(self, torch, hello)
        atexit.register(self._finish)

    def ask(self, question: str, **values: Any) -> Any:
        """The answer of the executor; its error is raised."""
        message = json.dumps({"ask": question, **values}).encode()
        answer, size = ctypes.POINTER(ctypes.c_char)(), ctypes.c_size_t()
        status = self._library.aliquot_remote_ask(
            message, ctypes.c_size_t(len(message)), ctypes.byref(answer), ctypes.byref(size)
        )
        text = ctypes.string_at(answer, size.value).decode()
        self._library.aliquot_remote_release(answer)
        if status == _OUT_OF_MEMORY:
            raise self.torch.OutOfMemoryError(text)
        if status:
            raise _ERRORS.get(status, RuntimeError)(text)
        return json.loads(text)

    def counts(self) -> tuple[int, int]:
        """How many operators were sent, and how often the program has waited for an answer."""
        calls, waits = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.aliquot_remote_counts(ctypes.byref(calls), ctypes.byref(waits))
        return calls.value, waits.value

    def is_valid_answer(self, data: bytes, slots: int) -> bool:
        """Whether these bytes are a valid answer to a call with so many tensors."""
        return bool(
            self._library.aliquot_remote_valid(
                data, ctypes.c_size_t(len(data)), ctypes.c_uint32(slots)
            )
        )

    def _finish(self) -> None:
        """Wait for what was sent, so that an error of the last operators is not lost."""
        try:
            self.ask("synchronize")
        except Exception as error:  # noqa: BLE001 - the program is ending, and is told
            sys.stderr.write(f"aliquot: {error}\n")


def _attach() -> socket.socket:
    path, session = os.environ.get(greeting.SOCKET), os.environ.get(greeting.SESSION)
    if not path or not session:
        raise greeting.RemoteError(
            f"{greeting.SOCKET} or {greeting.SESSION} is gone from the environment",
            "Keep both for the program, or start it without --remote.",
        )
    return greeting.ask(path, {"attach": session})[0]


def _version(torch: Path) -> str:
    text = (torch / "version.py").read_text("utf-8")
    found = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    if found is None:
        raise greeting.RemoteError(f"the version of PyTorch in {torch} cannot be read")
    return found[1]

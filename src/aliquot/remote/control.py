"""The control messages of a client: questions as JSON objects, and the global settings.

Each question has the key `ask`. docs/remote.md lists them.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import torch

from aliquot.remote import operators, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PROPERTIES = (
    "name",
    "major",
    "minor",
    "total_memory",
    "multi_processor_count",
    "warp_size",
    "max_threads_per_multi_processor",
    "L2_cache_size",
    "is_integrated",
    "is_multi_gpu_board",
    "gcnArchName",
)
_ON_CPU = {
    "name": "a CPU that stands for a GPU",
    "major": 9,
    "minor": 0,
    "total_memory": 1 << 34,
    "multi_processor_count": 1,
    "warp_size": 32,
}
_MEMORY = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "mem_get_info",
    "memory_stats",
    "reset_peak_memory_stats",
    "empty_cache",
)


class InvalidQuestionError(Exception):
    """A control message that no client of this version sends."""


class Controls:
    """Answers to questions about one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._questions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "hello": self._hello,
            "synchronize": self._synchronize,
            "seed": self._seed,
            "initial_seed": lambda _: self._random().initial_seed(),
            "random_state": self._random_state,
            "set_random_state": self._set_random_state,
            "memory": self._memory,
        }

    def answer(self, content: dict[str, Any]) -> Sequence[bytes | memoryview]:
        """The answer to a question, or the error that it is invalid."""
        try:
            question = self._questions.get(str(content.get("ask")))
            if question is None:
                raise InvalidQuestionError(f"{content.get('ask')!r} is no question")  # noqa: TRY301
            made = json.dumps(question(content)).encode()
        except Exception as error:  # noqa: BLE001 - PyTorch may raise anything
            return wire.error_answer(type(error).__name__, str(error))
        return wire.answer(wire.AnswerKind.CONTROL, made)

    @staticmethod
    def apply(settings: dict[str, bool], default_dtype: torch.dtype) -> None:
        """Have these global settings from here on."""
        cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
        cudnn.enabled = settings["cudnn"]
        cudnn.benchmark = settings["cudnn_benchmark"]
        cudnn.deterministic = settings["cudnn_deterministic"]
        cudnn.allow_tf32 = settings["cudnn_tf32"]
        cuda.matmul.allow_tf32 = settings["matmul_tf32"]
        cuda.matmul.allow_fp16_reduced_precision_reduction = settings["float16_reduction"]
        cuda.matmul.allow_bf16_reduced_precision_reduction = settings["bfloat16_reduction"]
        cuda.matmul.allow_fp16_accumulation = settings["float16_accumulation"]
        cuda.enable_flash_sdp(settings["flash_attention"])
        cuda.enable_mem_efficient_sdp(settings["memory_efficient_attention"])
        cuda.enable_math_sdp(settings["math_attention"])
        cuda.enable_cudnn_sdp(settings["cudnn_attention"])
        torch.use_deterministic_algorithms(
            settings["deterministic"], warn_only=settings["deterministic_warn_only"]
        )
        torch.utils.deterministic.fill_uninitialized_memory = settings["fill_uninitialized_memory"]
        torch.set_default_dtype(default_dtype)

    def _hello(self, content: dict[str, Any]) -> dict[str, Any]:
        if content.get("wire") != wire.VERSION:
            raise InvalidQuestionError(
                f"the client speaks version {content.get('wire')} of the wire, the executor "
                f"{wire.VERSION}: install the same version of Aliquot on both sides"
            )
        if content.get("torch") != torch.__version__:
            raise InvalidQuestionError(
                f"the program has PyTorch {content.get('torch')}, the executor "
                f"{torch.__version__}: install the same version on both sides"
            )
        names = operators.sent(self._device.type)
        return {
            "operators": names,
            "schemas": operators.digest(names),
            "on_cpu": not self._cuda,
            "cudnn": (torch.backends.cudnn.version() or 0) if self._cuda else 0,
            "properties": self._properties(),
            "architectures": torch.cuda.get_arch_list() if self._cuda else [],
        }

    def _properties(self) -> dict[str, Any]:
        if not self._cuda:
            return dict(_ON_CPU)
        found = torch.cuda.get_device_properties(self._device)
        return {name: getattr(found, name) for name in _PROPERTIES if hasattr(found, name)}

    def _synchronize(self, _content: dict[str, Any]) -> bool:
        if self._cuda:
            torch.cuda.synchronize()
        return True

    def _random(self) -> Any:
        return torch.cuda if self._cuda else torch

    def _seed(self, content: dict[str, Any]) -> bool:
        seed = content.get("seed")
        if type(seed) is not int:
            raise InvalidQuestionError(f"{seed!r} is no seed")
        self._random().manual_seed(seed)
        return True

    def _random_state(self, _content: dict[str, Any]) -> str:
        return base64.b64encode(bytes(self._random().get_rng_state().tolist())).decode()

    def _set_random_state(self, content: dict[str, Any]) -> bool:
        state = bytearray(base64.b64decode(str(content.get("state")), validate=True))
        self._random().set_rng_state(torch.frombuffer(state, dtype=torch.uint8))
        return True

    def _memory(self, content: dict[str, Any]) -> Any:
        name = content.get("name")
        if name not in _MEMORY:
            raise InvalidQuestionError(f"{name!r} is no question about memory")
        if not self._cuda:
            return (
                {}
                if name == "memory_stats"
                else [1 << 34, 1 << 34]
                if name == "mem_get_info"
                else 0
            )
        return getattr(torch.cuda, name)()

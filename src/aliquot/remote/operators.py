"""Which of PyTorch's operators a client sends: the executor's allow-list, and the client's own.

An operator is sent if autograd sees it as one step, a kernel computes it on the executor's device,
its arguments and results are tensors and plain values, and it is no view: views are made by the
client, which needs no GPU for them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

# Of the host's files, memory or processes, of another kind of tensor, or of several GPUs.
EXCLUDED_NAMES = frozenset(
    {
        "_copy_from",
        "_copy_from_and_resize",
        "_has_compatible_shallow_copy_type",
        "_pin_memory",
        "from_file",
        "is_pinned",
        "is_set_to",
        "record_stream",
        "set_",
        "set_data",
    }
)
EXCLUDED_WORDS = (
    "nested",
    "sparse",
    "quantize",
    "fbgemm",
    "mkldnn",
    "_cuda_",
    "_cslt",
    "jagged",
    "symint",
)
_EXCLUDED_TYPES = ("Generator", "Storage", "Stream", "Dimname", "Dict", "__torch__", "Any")
_KEPT_GENERATOR = "Generator?"  # an optional one must be None
_KERNELS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def overload(operator: str, name: str) -> Any:
    """The function that calls an overload."""
    short = operator.removeprefix("aten::")
    return getattr(getattr(torch.ops.aten, short), name or "default")


def sent(device: str) -> list[str]:
    """The full names of the operators that an executor on this kind of device runs, sorted."""
    key = "CUDA" if device == "cuda" else "CPU"
    return sorted(name for name in torch._C._dispatch_get_all_op_names() if _is_sent(name, key))  # noqa: SLF001


def digest(names: list[str]) -> str:
    """A hash of the schemas: equal on both sides, or the two PyTorch differ."""
    schemas = "\n".join(str(_schema(name)) for name in names)
    return hashlib.sha256(schemas.encode()).hexdigest()


def _schema(name: str) -> Any:
    operator, _, overload_name = name.partition(".")
    try:
        return torch._C._get_schema(operator, overload_name)  # noqa: SLF001
    except RuntimeError:  # a name without a schema
        return None


def _is_sent(name: str, key: str) -> bool:
    short = name.removeprefix("aten::").partition(".")[0]
    if not name.startswith("aten::") or short in EXCLUDED_NAMES:
        return False
    if any(word in short for word in EXCLUDED_WORDS):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    if not any(has_kernel(name, one) for one in (key, *_KERNELS)):
        return False
    schema = _schema(name)
    return schema is not None and _is_plain(schema) and not _is_view(schema, name)


def _is_plain(schema: Any) -> bool:
    kinds = [str(one.type) for one in (*schema.arguments, *schema.returns)]
    return not any(
        word in kind
        for kind in kinds
        if kind.replace("Optional[Generator]", _KEPT_GENERATOR) != _KEPT_GENERATOR
        for word in _EXCLUDED_TYPES
    )


def _is_view(schema: Any, name: str) -> bool:
    """Whether it makes a view, or changes only how its argument lies."""
    if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
        return True
    operator, _, overload_name = name.partition(".")
    tags = overload(operator, overload_name).tags
    return torch.Tag.inplace_view in tags and not operator.startswith("aten::resize")

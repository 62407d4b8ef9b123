"""Run PyTorch's own samples of its operators here and remotely, and compare.

    operators.py FIRST STEP SAMPLES

takes each STEP-th operator from FIRST on, and so many samples of each for each dtype. Prints how
many samples were the same, which operators were refused and why, and what was neither.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten

DTYPES = (torch.float32, torch.int64)
REFUSED = "is not supported on a remote GPU"
# Their results are what memory held before, or where it is.
UNDEFINED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


def moved(value: Any) -> Any:
    """The same arguments on the GPU."""
    if isinstance(value, torch.Tensor):
        made = value.detach().cuda()
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device("cuda")
    return value


def outcome(function: Any, sample: Any) -> Any:
    """What the operator returns, and the gradients of its arguments; or its exception."""
    torch.manual_seed(0)
    arguments = (sample.input, sample.args, sample.kwargs)
    leaves = [one for one in tree_flatten(arguments)[0] if isinstance(one, torch.Tensor)]
    try:
        made = function(sample.input, *sample.args, **sample.kwargs)
        results = [one for one in tree_flatten(made)[0] if isinstance(one, torch.Tensor)]
        plain = [one for one in tree_flatten(made)[0] if not isinstance(one, torch.Tensor)]
        wanted = [one for one in results if one.requires_grad]
        given = [one for one in leaves if one.requires_grad and one.is_leaf]
        grads = (
            torch.autograd.grad(
                wanted, given, [torch.ones_like(one) for one in wanted], allow_unused=True
            )
            if wanted and given
            else ()
        )
        return [None if one is None else one.detach().cpu() for one in (*results, *grads)], plain
    except Exception as error:  # noqa: BLE001 - it is what is compared
        return error


def difference(here: Any, there: Any) -> str | None:  # noqa: PLR0911 - one for each way to differ
    """How the outcomes differ: None, "refused: ..." or what is wrong."""
    if isinstance(there, Exception) and REFUSED in str(there):
        return f"refused: {str(there).splitlines()[0]}"
    if isinstance(here, Exception):
        return None if isinstance(there, Exception) else f"no error, but here: {here}"
    if isinstance(there, Exception):
        return f"{type(there).__name__}: {str(there)[:300]}"
    if len(here[0]) != len(there[0]) or here[1] != there[1]:
        return "other results"
    for one, other in zip(*(made[0] for made in (here, there)), strict=True):
        if (one is None) != (other is None):
            return "another gradient"
        if one is None:
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{other.dtype} {tuple(other.shape)} instead of {one.dtype} {tuple(one.shape)}"
        # A GPU's tensors take other ways through PyTorch: the order of additions may differ.
        if not torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
            return "other values"
    return None


def main() -> None:
    warnings.simplefilter("ignore")
    first, step, samples = (int(one) for one in sys.argv[1:4])
    same: Counter[str] = Counter()
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for op in op_db[first::step]:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if op.name in UNDEFINED:
            continue
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            grad = dtype.is_floating_point and op.supports_autograd
            torch.manual_seed(1)
            for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
                if number >= samples:
                    break
                here = outcome(op.op, sample)
                there = outcome(op.op, sample.transform(moved))
                found = difference(here, there)
                if found is None:
                    same[name] += 1
                elif found.startswith("refused"):
                    refused[name] = found
                else:
                    wrong[f"{name} {dtype} {number}"] = found
    print(
        json.dumps(
            {"same": sum(same.values()), "operators": len(same), "refused": refused, "wrong": wrong}
        )
    )


if __name__ == "__main__":
    main()

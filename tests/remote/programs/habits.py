"""Do what programs do with a GPU, and print for each habit what came of it.

The value is "right", or the type and text of the exception.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

HABITS: dict[str, Callable[[], Any]] = {}


def habit(function: Callable[[], Any]) -> Callable[[], Any]:
    HABITS[function.__name__] = function
    return function


def same(one: Any, other: Any) -> bool:
    return bool(torch.equal(one.cpu(), other))


@habit
def copies() -> Any:
    host = torch.arange(24.0).reshape(4, 6)
    gpu = host.cuda()
    turned = gpu.t()[1:, ::2].contiguous()
    gpu[1].copy_(torch.zeros(6))
    host_after = host.clone()
    host_after[1] = 0
    half = host.to("cuda", torch.float16)
    return same(turned, host.t()[1:, ::2]) and same(gpu, host_after) and same(half, host.half())


@habit
def a_copy_that_does_not_block_has_the_values_of_its_call() -> Any:
    host = torch.ones(1 << 20)
    gpu = host.to("cuda", non_blocking=True)
    host.zero_()
    return float(gpu.sum()) == 1 << 20


@habit
def printing() -> Any:
    return "device='cuda:0'" in repr(torch.ones(2, device="cuda"))


@habit
def an_operator_that_fails_after_it_has_resized_its_result() -> Any:
    result = torch.zeros(1, device="cuda")
    values, wrong = torch.arange(4.0, device="cuda"), torch.tensor([0, 99, 1], device="cuda")
    try:
        torch.index_select(values, 0, wrong, out=result)
    except IndexError:
        return result.cpu().numel() == 1 and same(values, torch.arange(4.0))
    return False


@habit
def views_share_memory() -> Any:
    gpu = torch.zeros(3, 4, device="cuda")
    gpu.view(-1)[5] = 7
    gpu[:, 2].add_(1)
    return gpu.cpu().tolist() == [[0, 0, 1, 0], [0, 7, 1, 0], [0, 0, 1, 0]]


@habit
def results_of_unknown_size() -> Any:
    host = torch.tensor([3, 0, 5, 0, 3])
    gpu = host.cuda()
    return (
        same(gpu.nonzero(), host.nonzero())
        and same(gpu[gpu > 0], host[host > 0])
        and same(gpu.unique(), host.unique())
        and same(gpu[1:].nonzero(), host[1:].nonzero())
    )


@habit
def resizing() -> Any:
    gpu = torch.arange(4, device="cuda")
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(3, device="cuda"), 1, out=out)
    gpu.resize_(2)
    return gpu.cpu().tolist() == [0, 1] and out.cpu().tolist() == [2, 2, 2]


@habit
def numbers_and_their_types() -> Any:
    whole = torch.arange(3, device="cuda")
    single = torch.ones(3, device="cuda")
    return (
        (whole * 2.5).dtype == torch.float32
        and (whole * 2).dtype == torch.int64
        and (single * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float32
        and (whole * 2.5).cpu().tolist() == [0, 2.5, 5]
        and torch.arange(0, 2.5, 1, device="cuda").numel() == 3
        and torch.arange(0, 4.5, 1, device="cuda").numel() == 5
    )


@habit
def the_default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        made = torch.ones(2, device="cuda")
        return (
            made.dtype == torch.float64
            and (torch.arange(2, device="cuda") * 0.5).dtype == made.dtype
        )
    finally:
        torch.set_default_dtype(torch.float32)


@habit
def seeds() -> Any:
    torch.manual_seed(5)
    first = torch.rand(4, device="cuda").cpu()
    state = torch.cuda.get_rng_state()
    second = torch.rand(4, device="cuda").cpu()
    torch.cuda.set_rng_state(state)
    again = torch.rand(4, device="cuda").cpu()
    torch.cuda.manual_seed(5)
    return torch.equal(second, again) and torch.equal(first, torch.rand(4, device="cuda").cpu())


@habit
def saving_and_loading() -> Any:
    model = nn.Linear(3, 2).cuda()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "view": model.weight[0]}, file)
    file.seek(0)
    loaded = torch.load(file)
    file.seek(0)
    on_host = torch.load(file, map_location="cpu")
    weight = loaded["model"]["weight"]
    return (
        weight.is_cuda
        and same(weight, model.weight.cpu())
        and same(model.bias, on_host["model"]["bias"])
    )


@habit
def mixed_precision() -> Any:
    model = nn.Linear(8, 8).cuda()
    scaler = torch.amp.GradScaler("cuda")
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        made = model(torch.ones(4, 8, device="cuda"))
    scaler.scale(made.float().sum()).backward()
    scaler.step(steps)
    scaler.update()
    return made.dtype == torch.bfloat16 and bool(torch.isfinite(model.weight).all())


@habit
def attention_with_a_mask() -> Any:
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind(0)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    own = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    gpu = torch.nn.functional.scaled_dot_product_attention(
        query.cuda(), key.cuda(), value.cuda(), attn_mask=mask.cuda()
    )
    return bool(torch.allclose(gpu.cpu(), own, atol=1e-6))


@habit
def complex_numbers() -> Any:
    host = torch.complex(torch.arange(3.0), torch.ones(3))
    gpu = host.cuda()
    return same(gpu.conj() * 2, host.conj() * 2) and same(gpu.conj(), host.conj())


@habit
def streams_and_events() -> Any:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(torch.cuda.Stream()):
        start.record()
        made = torch.ones(8, device="cuda") * 2
        end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) >= 0 and float(made.sum()) == 16


@habit
def an_error_at_the_call_is_that_of_pytorch() -> Any:
    try:
        torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    except RuntimeError as error:
        return "mat1 and mat2 shapes cannot be multiplied" in str(error)
    return False


@habit
def an_operator_that_fails_later_is_raised_with_its_name_at_the_next_wait() -> Any:
    table = torch.arange(6.0, device="cuda").reshape(3, 2)
    good, wrong = torch.tensor([1, 2]).cuda(), torch.tensor([1, 9]).cuda()
    other = torch.ones(2, device="cuda")
    learnt = torch.nn.functional.embedding(good, table) * 2
    assert learnt.sum().item() == 28
    failed = torch.nn.functional.embedding(wrong, table) * 2  # nobody waits
    try:
        torch.cuda.synchronize()
    except IndexError as error:
        raised = "aten::embedding failed" in str(error)
    try:
        failed.sum().item()
    except RuntimeError as error:
        poisoned = "aten::embedding failed" in str(error)
    return raised and poisoned and other.sum().item() == 2


@habit
def a_forked_child_cannot_use_the_gpu_and_the_parent_still_can() -> Any:
    gpu = torch.ones(2, device="cuda")
    child = os.fork()
    if not child:
        try:
            gpu.sum()
        except RuntimeError as error:
            os._exit(0 if "forked subprocess" in str(error) else 2)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0 and float(gpu.sum()) == 2


# --- what is refused ---


@habit
def dlpack() -> Any:
    torch.utils.dlpack.to_dlpack(torch.ones(2, device="cuda"))
    return True


@habit
def dlpack_by_the_tensor() -> Any:
    torch.ones(2, device="cuda").__dlpack__()
    return True


@habit
def the_cuda_array_interface() -> Any:
    return bool(torch.ones(2, device="cuda").__cuda_array_interface__)


@habit
def a_generator() -> Any:
    return bool(torch.Generator(device="cuda"))


@habit
def sparse_tensors() -> Any:
    return bool(torch.eye(2, device="cuda").to_sparse().is_sparse)


@habit
def quantized_tensors() -> Any:
    made = torch.quantize_per_tensor(torch.ones(2, device="cuda"), 0.1, 0, torch.quint8)
    return bool(made.is_quantized)


@habit
def compiling() -> Any:
    return bool(torch.compile(nn.Linear(2, 2).cuda()))


@habit
def graphs() -> Any:
    return bool(torch.cuda.CUDAGraph())


@habit
def another_gpu() -> Any:
    return bool(torch.ones(2, device="cuda:1").is_cuda)


@habit
def writing_to_the_host_from_the_gpu() -> Any:
    return bool(torch.ones(2).add_(torch.ones(2, device="cuda")).sum() == 4)


def main() -> None:
    found = {}
    for name, function in HABITS.items():
        try:
            found[name] = "right" if function() else "wrong"
        except Exception as error:  # noqa: BLE001 - it is what is asked
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()

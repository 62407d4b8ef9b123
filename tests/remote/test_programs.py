"""Unmodified PyTorch programs with a remote GPU: the same results as here, or a clear refusal."""

from __future__ import annotations

from remote.conftest import PROGRAMS, ROOT, Remote, printed


def test_training_has_the_losses_of_the_same_program_on_the_cpu(remote: Remote) -> None:
    program = [str(PROGRAMS / "train.py"), "cpu"]
    here = printed([remote.command("train.py")[-2], *program], remote.environment)
    assert remote.run("train.py", "cuda") == here


def test_a_program_may_look_for_torch_before_it_imports_it(remote: Remote) -> None:
    assert remote.run("look_first.py") == [1.0, 1.0]


def test_habits_of_programs_are_right_or_refused_with_the_reason(remote: Remote) -> None:
    refused = {
        "dlpack": "DLPack of a tensor is not supported on a remote GPU",
        "dlpack_by_the_tensor": "DLPack of a tensor is not supported on a remote GPU",
        "the_cuda_array_interface": "the CUDA array interface is not supported on a remote GPU",
        "a_generator": "a torch.Generator of device cuda is not supported on a remote GPU",
        "sparse_tensors": "is not supported on a remote GPU",
        "quantized_tensors": "is not supported on a remote GPU",
        "compiling": "torch.compile is not supported on a remote GPU",
        "graphs": "a CUDA graph is not supported on a remote GPU",
        "another_gpu": "invalid device ordinal",
        "writing_to_the_host_from_the_gpu": "Expected all tensors to be on the same device",
    }
    found = remote.run("habits.py")
    others = {name: text for name, text in found.items() if name not in refused}
    assert others == dict.fromkeys(others, "right")
    assert len(others) > 15
    for name, reason in refused.items():
        assert reason in found[name], name


def test_an_executor_refuses_what_only_a_forged_client_sends(
    torch_python: str, remote: Remote
) -> None:
    program = [torch_python, str(PROGRAMS / "forge.py"), str(ROOT / "src")]
    found = printed(program, remote.environment)
    assert "aten::arange failed on the remote GPU" in found["another_layout"]
    assert "lie otherwise than those of an earlier call" in found["another_layout"]
    assert "a view of 32 bytes is larger than its storage" in found["a_view_that_is_too_large"]
    assert "aten::from_file is not on the list" in found["an_operator_that_reads_files"]
    assert "storage 77 does not exist" in found["a_storage_that_does_not_exist"]
    assert "storage 77 does not exist" in found["writing_to_a_storage_that_does_not_exist"]
    assert "before it was learnt" in found["a_call_that_was_never_learnt"]
    assert "no kind of message" in found["random_bytes"]

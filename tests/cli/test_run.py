"""`aliquot run`, on simulated machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.conftest import PROGRAM, Tenants, grants_of
from conftest import Cli, aliquot_command
from slices.played import Played, gpu_words, status_words
from support import GIB, MIB, wait_until

ONE = ("--simulate", "h100:1")
FOUR = ("--simulate", "h100:4")


def test_a_grant_has_the_name_of_those_it_runs_together_with(tenants: Tenants, cli: Cli) -> None:
    tenants.start(*ONE, "--memory", "1GiB", "--name", "mine", "--together", "ring").hear("stays")
    tenants.start(*ONE, "--memory", "1GiB", "--name", "alone").hear("stays")
    found = grants_of(cli)
    assert (found["mine"]["together"], found["alone"]["together"]) == ("ring", None)
    header, *rows = cli("ps").stdout.splitlines()
    assert "Together" in header
    assert [row.split()[0] for row in rows if "ring" in row.split()] == ["mine"]


def test_the_program_sees_its_slice_and_is_stopped_at_its_limit(tenants: Tenants) -> None:
    greedy = tenants.start(*ONE, "--memory", "2GiB", wants="all")
    assert greedy.hear("sees")["bytes"] == 2 * GIB
    stopped = greedy.hear("stopped")
    assert stopped["code"] == 2
    assert 1 * GIB < stopped["bytes"] <= 2 * GIB
    assert greedy.end() == 0


def test_the_output_describes_the_grant(cli: Cli) -> None:
    answer = cli("run", *ONE, "--memory", "8G", "--compute", "30%", "--name", "mine", "--", "true")
    assert "grant mine: 8 GiB and 30% of the compute time of simulated GPU 0 (H100" in answer.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--priority", "background"), ", in the background: only while no other slice has work\n"),
        (("--priority", "latency", "--policy", "hard"), ", policy hard, priority latency\n"),
    ],
)
def test_the_output_names_settings_that_are_not_default(
    cli: Cli, options: tuple[str, ...], words: str
) -> None:
    answer = cli("run", *ONE, "--memory", "8G", "--compute", "30", *options, "--", "true")
    assert words in answer.stderr
    assert ("30%" in answer.stderr) is ("background" not in options)


def test_the_output_says_that_it_is_simulated(cli: Cli) -> None:
    answer = cli("run", *ONE, "--memory", "8G", "--name", "mine", "--", "true")
    assert answer.returncode == 0
    assert "grant mine: 8 GiB of simulated GPU 0 (H100" in answer.stderr
    assert answer.stdout == ""


def test_the_variable_chooses_the_simulated_machine(cli: Cli) -> None:
    answer = cli("run", "--", "true", env={"ALIQUOT_SIMULATE": "t4:2"})
    assert answer.returncode == 0, answer.stderr
    assert "simulated GPU 0 (Tesla T4)" in answer.stderr


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_that_of_the_command(cli: Cli, code: int) -> None:
    assert cli("run", *ONE, "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGPIPE])
def test_the_signal_is_that_of_the_command(cli: Cli, number: signal.Signals) -> None:
    assert cli("run", *ONE, "--", "sh", "-c", f"kill -{number} $$").returncode == -number


def test_arguments_and_streams_reach_the_command(cli_env: dict[str, str]) -> None:
    answer = subprocess.run(
        [aliquot_command(), "run", *ONE, "sh", "-c", 'cat; echo "$@" >&2', "-", "--memory", "a b"],
        env=cli_env,
        input="from outside\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "from outside\n"
    assert answer.stderr.splitlines()[-1] == "--memory a b"


def test_the_command_has_no_unexpected_child(cli: Cli) -> None:
    code = "import os\ntry: os.waitpid(-1, 0)\nexcept ChildProcessError: print('none')"
    answer = cli("run", *ONE, "--", sys.executable, "-c", code)
    assert answer.stdout == "none\n", answer.stderr


def test_a_grant_lives_as_long_as_its_program(cli: Cli, tenants: Tenants) -> None:
    options = ("--compute", "30", "--policy", "hard", "--priority", "latency")
    tenant = tenants.start(*ONE, "--memory", "4GiB", "--name", "mine", *options, wants=str(GIB))
    tenant.hear("stays")
    grant = grants_of(cli)["mine"]
    assert grant["owner_pid"] == tenant.process.pid
    part = grant["slices"][0]
    assert part["memory_bytes"] == 4 * GIB
    assert GIB < part["counted_bytes"] + part["driver_bytes"] < 2 * GIB  # with its context
    assert (part["compute_percent"], part["policy"], part["priority"]) == (30, "hard", "latency")
    assert [process["pid"] for process in grant["processes"]] == [tenant.process.pid]
    assert tenant.end() == 0
    wait_until(lambda: "mine" not in grants_of(cli))


def test_memory_returns_when_a_program_is_killed(cli: Cli, tenants: Tenants) -> None:
    doomed = tenants.start(*ONE, "--memory", "70GiB", "--name", "doomed", wants=str(60 * GIB))
    doomed.hear("stays")
    refused = cli("run", *ONE, "--memory", "20GiB", "--", "true")
    assert refused.returncode == 1
    os.kill(doomed.process.pid, signal.SIGKILL)
    wait_until(lambda: not grants_of(cli))
    assert cli("run", *ONE, "--memory", "70GiB", "--", "true").returncode == 0


def test_two_half_gpus_are_one_grant(cli: Cli, tenants: Tenants) -> None:
    tenant = tenants.start(*FOUR, "--gpus", "2", "--memory", "50%", "--name", "halves")
    tenant.hear("stays")
    slices = grants_of(cli)["halves"]["slices"]
    assert len({part["gpu"] for part in slices}) == 2
    assert [part["index"] for part in slices] == [0, 1]


def test_a_shared_gpu_is_filled_first(cli: Cli, tenants: Tenants) -> None:
    for number, size in enumerate(("30GiB", "30GiB", "40GiB", "8GiB")):
        tenants.start(*FOUR, "--memory", size, "--name", f"n{number}").hear("stays")
    found = grants_of(cli)
    indexes = [found[f"n{number}"]["slices"][0]["index"] for number in range(4)]
    assert indexes == [0, 0, 1, 0]


def test_a_share_of_compute_comes_with_the_same_share_of_memory(cli: Cli) -> None:
    answer = cli("run", *ONE, "--compute", "25", "--", "true")
    said = "19.7 GiB (25% as no --memory is given) and 25% of the compute time of simulated GPU 0"
    assert said in answer.stderr
    for whole in ((), ("--compute", "100")):
        assert ": 79.1 GiB" in cli("run", *ONE, *whole, "--", "true").stderr


def test_a_slice_that_cannot_hold_a_context_is_refused(cli: Cli, tenants: Tenants) -> None:
    answer = cli("run", *ONE, "--memory", "500MiB", "--", "true")
    assert answer.returncode == 1
    assert "500 MiB cannot hold a CUDA context: one usually takes 518 MiB of GPU 0" in answer.stderr
    assert "--memory" in answer.stderr.splitlines()[1]
    tenants.start(*ONE, "--memory", "518MiB").hear("stays")
    answer = cli("run", *ONE, "--memory", "517MiB", "--", "true")
    assert "517 MiB cannot hold a CUDA context: one takes 518 MiB of GPU 0" in answer.stderr
    assert cli("run", *ONE, "--memory", "518MiB", "--", "true").returncode == 0


def test_a_dry_run_says_what_the_command_would_get_and_makes_nothing(cli: Cli) -> None:
    options = ("--memory", "8GiB", "--compute", "30", "--dry-run")
    answer = cli("run", *FOUR, *options, "--", "true")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == (
        "The command would get 8 GiB and 30% of the compute time of simulated GPU 0"
        " (H100 80GB HBM3): no grant has a part of it.\n"
    )
    assert "No arbiter" in cli("limits", *FOUR).stderr + cli("limits", *FOUR).stdout


def test_a_dry_run_says_why_the_command_would_not_run(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "60GiB", "--name", "large").hear("stays")
    answer = cli("run", *ONE, "--memory", "40GiB", "--dry-run", "--", "true")
    assert answer.returncode == 1
    assert "no GPU has 40 GiB free" in answer.stderr
    answer = cli("run", *ONE, "--memory", "1GiB", "--name", "large", "--dry-run", "--", "true")
    assert answer.returncode == 1
    assert "a grant named large" in answer.stderr
    assert cli("run", *ONE, "--dry-run", "--", "no-such-program").returncode == 127
    assert set(grants_of(cli)) == {"large"}


def test_a_dry_run_for_programs_has_slices_and_a_reason_for_each_gpu(
    cli: Cli, tenants: Tenants
) -> None:
    tenants.start(*FOUR, "--memory", "60GiB", "--name", "large").hear("stays")
    answer = cli("run", *FOUR, "--memory", "40GiB", "--dry-run", "--json", "--", "true")
    said = json.loads(answer.stdout)
    assert (said["fits"], said["error"]) == (True, None)
    assert [(one["index"], one["memory_bytes"]) for one in said["slices"]] == [(1, 40 * GIB)]
    assert [(one["index"], one["fits"]) for one in said["gpus"]] == [
        (1, True),
        (2, True),
        (3, True),
        (0, False),
    ]
    assert said["gpus"][3]["why"] == "19.1 GiB free (grants: large 60 GiB)"
    answer = cli("run", *FOUR, "--memory", "90GiB", "--dry-run", "--json", "--", "true")
    assert answer.returncode == 1
    assert "no GPU has 90 GiB" in json.loads(answer.stdout)["error"]


def test_explain_names_each_gpu_of_this_machine_in_order_of_preference(
    cli: Cli, tenants: Tenants
) -> None:
    tenants.start(*FOUR, "--memory", "60GiB", "--compute", "80", "--name", "large").hear("stays")
    answer = cli("explain", *FOUR, "--memory", "8GiB")
    assert answer.returncode == 0, answer.stderr
    lines = [line.split() for line in answer.stdout.splitlines()[1:]]
    assert lines[0][0] == "0"
    assert "chosen" in lines[0]
    assert "other GPUs stay whole" in answer.stdout.splitlines()[1]
    answer = cli("explain", *FOUR, "--memory", "8GiB", "--compute", "30")
    assert [line.split()[0] for line in answer.stdout.splitlines()[1:]] == ["1", "2", "3", "0"]
    assert "20% of its compute time free (grants: large 60 GiB 80%)" in answer.stdout
    answer = cli("explain", *FOUR, "--gpus", "4")
    assert answer.returncode == 1
    assert "it is not whole (grants: large 60 GiB)" in answer.stdout
    assert "4 GPUs whole requested, but there are 3" in answer.stderr


def test_a_request_larger_than_any_gpu_is_refused(cli: Cli) -> None:
    answer = cli("run", *ONE, "--memory", "100GiB", "--", "true")
    assert answer.returncode == 1
    assert "no GPU has 100 GiB: the largest is GPU 0 (H100" in answer.stderr


def test_a_gpu_weaker_than_asked_is_refused(cli: Cli) -> None:
    answer = cli("run", *ONE, "--memory", "8GiB", "--min-strength", "300", "--", "true")
    assert answer.returncode == 1
    assert "no GPU has strength 300 or more: the strongest is GPU 0 (H100" in answer.stderr
    assert "--min-strength" in answer.stderr
    answer = cli("run", *ONE, "--memory", "8GiB", "--min-strength", "fast", "--", "true")
    assert answer.returncode == 2
    assert "'fast' is not a strength" in answer.stderr
    answer = cli("explain", *ONE, "--min-strength", "300")
    assert (answer.returncode, "too weak: strength 286.3" in answer.stdout) == (1, True)
    answer = cli("run", *ONE, "--memory", "8GiB", "--min-strength", "286.3", "--", "true")
    assert answer.returncode == 0, answer.stderr


def test_only_the_gpus_that_are_named_are_used(cli: Cli) -> None:
    def chosen(*options: str) -> list[int]:
        preview = (*options, "--dry-run", "--json")
        answer = cli("run", *FOUR, "--memory", "8GiB", *preview, "--", "true")
        assert answer.returncode == 0, answer.stderr
        return [one["index"] for one in json.loads(answer.stdout)["slices"]]

    assert chosen("--gpu", "2") == [2]
    assert chosen("--gpus", "2", "--gpu", "3", "--gpu", "1", "--model", "h100") == [1, 3]
    assert chosen("--not-gpu", "0", "--not-gpu", "1") == [2]
    answer = cli("run", *FOUR, "--gpu", "9", "--", "true")
    assert (answer.returncode, "--gpu 9 names no GPU of this machine" in answer.stderr) == (1, True)
    answer = cli("run", *FOUR, "--model", "A100", "--", "true")
    assert answer.returncode == 1
    assert "no GPU is allowed by --model A100" in answer.stderr
    answer = cli("explain", *FOUR, "--not-gpu", "1", "--model", "H100")
    assert answer.returncode == 0
    assert "--not-gpu excludes it" in answer.stdout
    answer = cli("run", *FOUR, "--memory", "8GiB", "--gpu", "3", "--name", "here", "--", "true")
    assert "of simulated GPU 3 (H100" in answer.stderr


def test_slices_are_with_apart_from_and_alone(cli: Cli, tenants: Tenants) -> None:
    part = ("--simulate", "h100:2", "--memory", "8GiB")
    tenants.start(*part, "--name", "train").hear("stays")
    tenants.start(*part, "--name", "eval", "--apart-from", "train").hear("stays")
    found = grants_of(cli)
    first, second = (found[name]["slices"][0]["index"] for name in ("train", "eval"))
    assert (first, second) == (0, 1)
    assert found["eval"]["apart"] == ["train"]
    answer = cli("run", *part, "--name", "train2", "--label", "train", "--dry-run", "--", "true")
    assert "of simulated GPU 0 (H100" in answer.stdout
    answer = cli("run", *part, "--name", "serve", "--with", "eval", "--dry-run", "--", "true")
    assert "of simulated GPU 1 (H100" in answer.stdout
    both = ("--apart-from", "train", "--apart-from", "eval")
    answer = cli("run", *part, "--name", "third", *both, "--", "true")
    assert answer.returncode == 1
    assert answer.stderr.startswith(
        "aliquot: no GPU takes it beside the slices there:\n  GPU 0 has"
    )
    assert "GPU 0 has the slice train, which third asks to be apart from" in answer.stderr
    assert "GPU 1 has the slice eval, which third asks to be apart from" in answer.stderr
    answer = cli("explain", *part, "--alone")
    assert answer.returncode == 1
    assert "it has the slice train, and this request asks to be alone" in answer.stdout
    answer = cli("run", *part, "--alone", "--with", "eval", "--", "true")
    assert (answer.returncode, "exclude each other" in answer.stderr) == (2, True)


def test_memory_of_a_slice_can_be_let_leave_the_gpu(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "1GiB", "--name", "moves", "--swap").hear("stays")
    tenants.start(*ONE, "--memory", "1GiB", "--name", "stays", "--priority", "latency").hear(
        "stays"
    )
    found = grants_of(cli)
    assert (found["moves"]["swap"], found["stays"]["swap"]) == (True, False)
    assert found["moves"]["residence"] == "gpu"
    answer = cli(
        "run", "--simulate", "h100:2", "--gpus", "2", "--swap", "--memory", "1GiB", "--", "true"
    )
    assert answer.returncode == 2
    assert "--swap is for one GPU, and 2 are asked for" in answer.stderr


def test_an_idle_slice_can_be_let_be_parked(cli: Cli, tenants: Tenants) -> None:
    part = (*ONE, "--memory", "1GiB")
    tenants.start(*part, "--name", "idle", "--swap", "--park-after", "10m").hear("stays")
    found = grants_of(cli)["idle"]
    assert (found["park_after_ms"], found["parking"]) == (600_000, "none")
    for options, why in (
        (("--park-after", "10m"), "--park-after needs --swap"),
        (("--swap", "--park-after", "0.1s"), "--park-after cannot be 0.1 s"),
        (("--swap", "--park-after", "soon"), "'soon' is not a duration"),
    ):
        answer = cli("run", *part, *options, "--", "true")
        assert (answer.returncode, why in answer.stderr) == (2, True), answer.stderr


def test_a_slice_can_have_memory_of_the_host_beside_it(cli: Cli, tenants: Tenants) -> None:
    part = (*ONE, "--memory", "1GiB")
    tenants.start(*part, "--name", "large", "--spill", "64MiB").hear("stays")
    found = grants_of(cli)["large"]
    assert (found["spill_bytes"], found["on_host_bytes"]) == (64 << 20, 0)
    assert cli("ps", "--format", "{name} {on_host}").stdout == "large 0 B/64 MiB\n"
    for options, why in (
        (("--spill", "1GiB", "--swap"), "--spill and --swap exclude each other"),
        (("--spill", "10%"), "--spill 10% is not an amount of the host's memory"),
        (("--spill", "1GiB", "--gpus", "2"), "--spill is for one GPU, and 2 are asked for"),
    ):
        answer = cli("run", *part, *options, "--", "true")
        assert (answer.returncode, why in answer.stderr) == (2, True), answer.stderr
    answer = cli("run", *part, "--spill", "60TiB", "--", "true")
    assert answer.returncode == 1
    assert "MiB of the host are left for programs on GPUs" in answer.stderr
    assert "Ask for less with --spill" in answer.stderr


def test_no_capacity_names_the_grants(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "75GiB", "--name", "large").hear("stays")
    answer = cli("run", *ONE, "--memory", "8GiB", "--", "true")
    assert answer.returncode == 1
    assert "no GPU has 8 GiB free" in answer.stderr
    assert "(grants: large 75 GiB)" in answer.stderr


def test_a_whole_gpu_has_no_free_capacity(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--name", "whole").hear("stays")
    answer = cli("run", *ONE, "--", "true")
    assert answer.returncode == 1
    assert "no GPU is whole" in answer.stderr


def test_no_free_compute_names_the_grants_that_have_it(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "8GiB", "--compute", "60", "--name", "large").hear("stays")
    answer = cli("run", *ONE, "--memory", "8GiB", "--compute", "50", "--", "true")
    assert answer.returncode == 1
    assert "no GPU has 8 GiB and 50% of its compute time free" in answer.stderr
    assert "(grants: large 8 GiB 60%)" in answer.stderr
    assert "large of root has had 8 GiB of GPU 0 for" in answer.stderr
    assert "aliquot run --wait" in answer.stderr
    for share in (("--compute", "40"), ("--compute", "equal"), ("--priority", "background")):
        assert cli("run", *ONE, "--memory", "8GiB", *share, "--", "true").returncode == 0


def test_a_gpu_without_free_compute_is_skipped(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*FOUR, "--memory", "1GiB", "--compute", "90", "--name", "large").hear("stays")
    taken = grants_of(cli)["large"]["slices"][0]["index"]
    environment = {"CUDA_VISIBLE_DEVICES": f"{taken},{(taken + 1) % 4}"}
    for compute, expected in (("10", taken), ("40", (taken + 1) % 4)):
        answer = cli(
            *("run", *FOUR, "--memory", "77GiB", "--compute", compute, "--", "true"),
            env=environment,
        )
        assert f"simulated GPU {expected} " in answer.stderr
    only = {"CUDA_VISIBLE_DEVICES": str(taken)}
    answer = cli("run", *FOUR, "--memory", "1GiB", "--compute", "40", "--", "true", env=only)
    assert answer.returncode == 1
    assert "1 GiB and 40% of its compute time free" in answer.stderr


def test_hard_is_refused_without_gates(cli: Cli, aliquot_state: Path) -> None:
    state = aliquot_state / "simulated" / "h100-1"
    for folder in (aliquot_state, state.parent, state):
        folder.mkdir(mode=0o700)
    refusal = {"error": "GPU 0 has no gates", "code": "unsupported"}
    status = status_words(gpus=[{**gpu_words(), "granted_bytes": 0}])
    played = Played(state, lambda asked: refusal if asked.startswith("make") else status)
    try:
        answer = cli("run", *ONE, "--compute", "30", "--policy", "hard", "--", "true")
    finally:
        played.end()
    assert answer.returncode == 1
    assert answer.stderr.startswith("aliquot: GPU 0 has no gates\n  Use --policy elastic.")


def test_a_name_in_use_is_refused(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "1GiB", "--name", "mine").hear("stays")
    answer = cli("run", *ONE, "--memory", "1GiB", "--name", "mine", "--", "true")
    assert answer.returncode == 1
    assert "a grant named mine" in answer.stderr
    assert "--name" in answer.stderr


def test_cuda_visible_devices_selects_gpus_of_the_machine(cli: Cli) -> None:
    code = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    command = ("--", sys.executable, "-c", code)
    answer = cli("run", *FOUR, "--gpus", "2", *command, env={"CUDA_VISIBLE_DEVICES": "3,1"})
    assert answer.returncode == 0, answer.stderr
    assert "of simulated GPU 1 " in answer.stderr
    assert "of simulated GPU 3 " in answer.stderr
    assert answer.stdout == "None\n"


def test_cuda_visible_devices_with_too_few_gpus_is_refused(cli: Cli) -> None:
    arguments = ("run", *FOUR, "--gpus", "3", "--", "true")
    answer = cli(*arguments, env={"CUDA_VISIBLE_DEVICES": "3,1"})
    assert answer.returncode == 1
    assert "3 GPUs requested, but there are 2" in answer.stderr
    assert "CUDA_VISIBLE_DEVICES=3,1" in answer.stderr


def test_cuda_visible_devices_without_a_gpu_is_refused(cli: Cli) -> None:
    answer = cli("run", *ONE, "--", "true", env={"CUDA_VISIBLE_DEVICES": "-1"})
    assert answer.returncode == 1
    assert "CUDA_VISIBLE_DEVICES is '-1'" in answer.stderr


def test_concurrent_starts_all_get_capacity(cli: Cli) -> None:
    """The first ones also race to start the arbiter, and all of them for the same GPUs."""
    with ThreadPoolExecutor(8) as pool:
        runs = [
            pool.submit(cli, "run", *FOUR, "--memory", "50%", "--", "sh", "-c", "exit 7")
            for _ in range(8)
        ]
        answers = [run.result() for run in runs]
    assert [answer.returncode for answer in answers] == [7] * 8, [a.stderr for a in answers]


def test_children_share_the_slice(cli: Cli) -> None:
    code = (
        "import subprocess, sys\n"
        "one = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=-1, stdout=-1, text=True)\n"
        "assert any('stays' in line for line in one.stdout)\n"
        "two = subprocess.run([sys.executable, *sys.argv[1:]], input='', capture_output=True,\n"
        "    text=True)\n"
        "print(two.stdout); one.communicate()\n"
    )
    program = str(PROGRAM)
    command = [sys.executable, "-c", code, program, str(1200 * MIB)]
    answer = cli("run", *ONE, "--memory", "3GiB", "--", *command)
    assert '"stopped"' in answer.stdout, answer.stderr
    assert '"code": 2' in answer.stdout

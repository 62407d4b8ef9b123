"""`make` at the control socket: what it creates and what it refuses."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, GPU_BYTES, OTHER_GPU, RESERVED_BYTES
from support import GIB, MIB, uuid_of

if TYPE_CHECKING:
    from arbiter.rig import Arbiter


USABLE = GPU_BYTES - RESERVED_BYTES
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: other users, a small file system"
)


class TestMake:
    def test_creates_the_directory_of_the_grant(self, arbiter: Arbiter) -> None:
        request = f"make name=a.b-c_9 slice={GPU},memory={8 * GIB},compute=30,policy=hard"
        answer = arbiter.ask(
            request + f",priority=latency slice={OTHER_GPU},memory={GIB},priority=background"
        )
        directory = arbiter.state / "grants" / "a.b-c_9"
        marked = answer.pop("grant")
        assert marked.startswith(f"{directory}#")
        assert answer == {"name": "a.b-c_9", "directory": str(directory)}
        limits, usage = directory / "limits", directory / "usage"
        assert limits.stat().st_size == wire.LIMITS_SIZE
        assert usage.stat().st_size == wire.USAGE_SIZE
        assert usage.stat().st_blocks * 512 >= wire.USAGE_SIZE
        assert limits.stat().st_mode & 0o777 == 0o444
        assert usage.stat().st_mode & 0o777 == 0o644
        assert (directory / "socket").is_socket()
        grant = arbiter.grant("a.b-c_9")
        assert grant
        assert (grant["owner_pid"], grant["owner_alive"]) == (os.getpid(), True)
        assert grant["owner_uid"] == os.getuid()
        assert abs(grant["created"] - time.time()) < 60
        assert grant["broken"] is None
        assert grant["processes"] == []
        for one in grant["slices"]:
            del one["compute"]
        assert grant["slices"] == [
            {
                "gpu": GPU,
                "index": 0,
                "memory_bytes": 8 * GIB,
                "compute_percent": 30,
                "policy": "hard",
                "priority": "latency",
                "counted_bytes": 0,
                "driver_bytes": 0,
                "headroom_bytes": 32 * MIB,
            },
            {
                "gpu": OTHER_GPU,
                "index": 1,
                "memory_bytes": GIB,
                "compute_percent": 0,
                "policy": "elastic",
                "priority": "background",
                "counted_bytes": 0,
                "driver_bytes": 0,
                "headroom_bytes": 16 * MIB,
            },
        ]

    def test_stores_the_name_under_which_grants_run_together(self, arbiter: Arbiter) -> None:
        arbiter.ask(f"make name=a together=ranks slice={GPU},memory={GIB}")
        arbiter.make("b", GIB)
        for name, together in (("a", "ranks"), ("b", None)):
            grant = arbiter.grant(name)
            assert grant
            assert grant["together"] == together

    def test_a_name_in_use_is_refused(self, arbiter: Arbiter) -> None:
        arbiter.make("a", GIB)
        answer = arbiter.ask(f"make name=a slice={OTHER_GPU},memory={GIB}")
        assert answer["code"] == "name-in-use"
        assert len(arbiter.status()["grants"]) == 1

    def test_an_unknown_gpu_is_refused(self, arbiter: Arbiter) -> None:
        stranger = "GPU-ffffffff-0000-0000-0000-000000000000"
        answer = arbiter.ask(f"make name=a slice={stranger},memory={GIB}")
        assert answer["code"] == "no-such-gpu"
        assert stranger in answer["error"]

    def test_never_grants_more_than_is_free(self, arbiter: Arbiter) -> None:
        arbiter.make("a", USABLE - GIB)
        answer = arbiter.ask(f"make name=b slice={GPU},memory={GIB + 1}")
        assert answer["code"] == "no-capacity"
        for mib in (1024, USABLE >> 20, (USABLE - GIB) >> 20, 1025):
            assert f" {mib} MiB " in answer["error"].replace("(", "( ").replace(":", " :") + " "
        arbiter.make("b", GIB)
        assert arbiter.status()["gpus"][0]["granted_bytes"] == USABLE

    def test_all_slices_or_none(self, arbiter: Arbiter) -> None:
        answer = arbiter.ask(
            f"make name=a slice={GPU},memory={GIB} slice={OTHER_GPU},memory={USABLE + 512}"
        )
        assert answer["code"] == "no-capacity"
        assert arbiter.status()["gpus"][0]["granted_bytes"] == 0
        assert os.listdir(arbiter.state / "grants") == []  # noqa: PTH208 - dotted names too

    @pytest.mark.parametrize(
        "request_line",
        [
            "",
            "hello",
            "status now",
            "stop ",
            " status",
            "STATUS",
            "status\0",
            "make",
            "make ",
            "make name=a",
            f"make slice={GPU},memory={GIB}",
            f"make name= slice={GPU},memory={GIB}",
            f"make name=.a slice={GPU},memory={GIB}",
            f"make name=a/b slice={GPU},memory={GIB}",
            f"make name=../a slice={GPU},memory={GIB}",
            f"make name={'a' * 64} slice={GPU},memory={GIB}",
            f"make name=a name=b slice={GPU},memory={GIB}",
            f"make name=a together= slice={GPU},memory={GIB}",
            f"make name=a together=../b slice={GPU},memory={GIB}",
            f"make name=a together=b together=b slice={GPU},memory={GIB}",
            f"resize name=a together=b slice={GPU},memory={GIB}",
            f"make name=a label= slice={GPU},memory={GIB}",
            f"make name=a label=b label=b slice={GPU},memory={GIB}",
            f"make name=a apart= slice={GPU},memory={GIB}",
            f"make name=a apart=b, slice={GPU},memory={GIB}",
            f"make name=a apart=b,b slice={GPU},memory={GIB}",
            f"make name=a apart=b,../c slice={GPU},memory={GIB}",
            f"make name=a apart=b apart=c slice={GPU},memory={GIB}",
            f"make name=a apart=b,c,d,e,f,g,h,i,j slice={GPU},memory={GIB}",
            f"make name=a alone=0 slice={GPU},memory={GIB}",
            f"make name=a alone=1 alone=1 slice={GPU},memory={GIB}",
            f"resize name=a alone=1 slice={GPU},memory={GIB}",
            f"make name=a  slice={GPU},memory={GIB}",
            f"make name=a slice={GPU},memory={GIB} ",
            f"make name=a slice={GPU}",
            f"make name=a slice={GPU},memory=",
            f"make name=a slice={GPU},memory=-1",
            f"make name=a slice={GPU},memory=1e9",
            f"make name=a slice={GPU},memory={MIB - 1}",
            f"make name=a slice={GPU},memory={1 << 64}",
            f"make name=a slice={GPU},memory={GIB},memory={GIB}",
            f"make name=a slice={GPU},memory={GIB},compute=101",
            f"make name=a slice={GPU},memory={GIB},policy=soft",
            f"make name=a slice={GPU},memory={GIB},priority=high",
            f"make name=a slice={GPU},memory={GIB},colour=red",
            f"make name=a slice={GPU},memory={GIB},",
            f"make name=a slice={GPU[:-1]},memory={GIB}",
            f"make name=a slice={GPU.replace('GPU', 'MIX')},memory={GIB}",
            f"make name=a slice={GPU},memory={GIB} slice={GPU},memory={GIB}",
            f"make name=a kept=0 slice={GPU},memory={GIB}",
            f"make name=a kept=1 kept=1 slice={GPU},memory={GIB}",
            f"make name=a gradual=1 slice={GPU},memory={GIB}",
            "end",
            "end a",
            "end name=",
            "end name=a ",
            "end name=a name=a",
            "end name=a kept=1",
            f"end name=a slice={GPU},memory={GIB}",
            "make name=a" + "".join(f" slice={uuid_of(i)},memory={GIB}" for i in range(17)),
        ],
    )
    def test_a_malformed_request_changes_nothing(self, arbiter: Arbiter, request_line: str) -> None:
        answer = arbiter.ask(request_line)
        assert answer["code"] == "malformed"
        assert answer["error"]
        assert arbiter.status()["grants"] == []

    @pytest.mark.parametrize(
        "request_bytes", [b"status", b"status\nstatus\n", b"x" * 5000, b"\xff\n"]
    )
    def test_a_request_is_one_whole_line(self, arbiter: Arbiter, request_bytes: bytes) -> None:
        assert wire.ask(arbiter.state, request_bytes)["code"] == "malformed"

    def test_a_full_disk_is_an_error(self, stopped_arbiter: Arbiter) -> None:
        def no_file_over_100_kib() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))

        stopped_arbiter.start(preexec_fn=no_file_over_100_kib)
        answer = stopped_arbiter.ask(f"make name=a slice={GPU},memory={GIB}")
        assert answer["code"] == "cannot-make"
        assert "File too large" in answer["error"]
        assert os.listdir(stopped_arbiter.state / "grants") == []  # noqa: PTH208 - dotted names too
        assert stopped_arbiter.status()["gpus"][0]["granted_bytes"] == 0

    def test_too_few_descriptors_are_an_error(self, stopped_arbiter: Arbiter) -> None:
        stopped_arbiter.start(
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        )
        answers = [
            stopped_arbiter.ask(f"make name=g{i} slice={GPU},memory={MIB}") for i in range(20)
        ]
        made = [answer["name"] for answer in answers if "name" in answer]
        refused = [answer for answer in answers if "code" in answer]
        assert made
        assert refused
        assert {answer["code"] for answer in refused} == {"cannot-make"}
        assert {one["name"] for one in stopped_arbiter.status()["grants"]} == set(made)
        assert {path.name for path in (stopped_arbiter.state / "grants").iterdir()} == set(made)

    @needs_root
    def test_a_full_file_system_is_an_error(self, stopped_arbiter: Arbiter) -> None:
        stopped_arbiter.state.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs"]
        command = [*mount, str(stopped_arbiter.state)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("this machine lets nobody mount")
        try:
            stopped_arbiter.start()
            stopped_arbiter.make("fits", GIB)
            answer = stopped_arbiter.ask(f"make name=a slice={GPU},memory={GIB}")
            assert answer["code"] == "cannot-make"
            assert "No space left on device" in answer["error"]
            assert os.listdir(stopped_arbiter.state / "grants") == ["fits"]  # noqa: PTH208
            stopped_arbiter.end()
        finally:
            subprocess.run(["umount", "-l", str(stopped_arbiter.state)], check=True)

    def test_stop_is_refused_while_there_are_grants(self, arbiter: Arbiter) -> None:
        arbiter.make()
        assert arbiter.ask("stop")["code"] == "grants-left"
        assert arbiter.grant("a")

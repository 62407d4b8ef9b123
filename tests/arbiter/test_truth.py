"""The arbiter does not believe what a tenant can write: limits, life, the pages of processes."""

from __future__ import annotations

import ctypes as c
import errno
import os
import signal
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, contend
from support import GIB, MIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Tenant

    Tenants = Callable[[Path], Tenant]

LIMIT_AT = wire.LIMITS_HEADER.size + 16 + 32 + 8
LIFE_AT = 8 + 4 + 4 + 64 + 4 + 4 + 4
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="an arbiter of a user serves that user only: there is no boundary"
)


def write_at(file: Path, at: int, data: bytes) -> None:
    """Write as root in a container could, whatever the file's mode is."""
    file.chmod(0o600)
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)
    file.chmod(0o444)


def memory(arbiter: Arbiter) -> int:
    grant = arbiter.grant("a")
    assert grant
    return int(grant["slices"][0]["memory_bytes"])


def shown_limit(directory: Path) -> int:
    return int(struct.unpack_from("<Q", (directory / "limits").read_bytes(), LIMIT_AT)[0])


class TestDescriptors:
    @as_root
    @pytest.mark.parametrize("page", ["limits", "credit"])
    def test_root_cannot_reopen_a_read_only_page_for_writing(
        self, arbiter: Arbiter, page: str
    ) -> None:
        answer = wire.exchange(arbiter.make("a", GIB), wire.hello_message())
        fd = dict(zip(("limits", "usage", "credit", "work"), answer.fds, strict=True))[page]
        with pytest.raises(OSError, match=r"Read-only|not permitted|denied") as refused:
            os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        assert refused.value.errno in {errno.EROFS, errno.EPERM, errno.EACCES}
        assert arbiter.status()["protects_descriptors"] is True
        for each in answer.fds:
            os.close(each)

    @as_root
    def test_an_arbiter_that_cannot_protect_them_says_so(self, stopped_arbiter: Arbiter) -> None:
        def drop_sys_admin() -> None:
            assert c.CDLL(None).prctl(24, 21, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_SYS_ADMIN

        stopped_arbiter.start(preexec_fn=drop_sys_admin)
        directory = stopped_arbiter.make("a", GIB)
        assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME
        assert stopped_arbiter.status()["protects_descriptors"] is False
        assert "not protected against root in a container" in stopped_arbiter.log.read_text()

    def test_a_process_that_truncates_its_work_page_harms_only_itself(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        first, second = contend(arbiter, tenants)
        serving = arbiter.serving_pid()
        answer = wire.exchange(arbiter.make("liar", GIB), wire.hello_message())
        os.ftruncate(answer.fds[3], 0)
        before = [tenant.done() for tenant in (first, second)]
        wait_until(
            lambda: all(
                tenant.done() > done + 50
                for tenant, done in zip((first, second), before, strict=True)
            )
        )
        assert arbiter.serving_pid() == serving
        for each in answer.fds:
            os.close(each)

    def test_a_process_without_a_work_page_is_gated_by_the_next_arbiter(
        self, arbiter: Arbiter
    ) -> None:
        answer = wire.exchange(arbiter.make("a", GIB), wire.hello_message())
        size = os.fstat(answer.fds[3]).st_size
        os.ftruncate(answer.fds[3], 0)
        os.kill(arbiter.serving_pid(), signal.SIGKILL)
        wait_until(arbiter.answers)
        processes = (arbiter.grant("a") or {})["processes"]
        assert [one["ungated"] for one in processes] == [None]
        assert os.fstat(answer.fds[3]).st_size == size
        for each in answer.fds:
            os.close(each)

    @pytest.mark.parametrize("page", ["usage", "work"])
    def test_a_file_that_a_program_makes_longer_is_cut_again(
        self, arbiter: Arbiter, page: str
    ) -> None:
        arbiter.make("honest", GIB)
        answer = wire.exchange(arbiter.make("a", GIB), wire.hello_message())
        fd = dict(zip(("limits", "usage", "credit", "work"), answer.fds, strict=True))[page]
        size = os.fstat(fd).st_size
        for _ in range(2):
            os.posix_fallocate(fd, 0, 64 * MIB)
            wait_until(lambda: os.fstat(fd).st_size == size)
            wait_until(lambda: os.fstat(fd).st_blocks * 512 <= size + 4 * MIB)
        assert (arbiter.grant("a") or {})["broken"] == f"{page}: a program made the file longer"
        assert (arbiter.grant("honest") or {})["broken"] is None
        for each in answer.fds:
            os.close(each)

    def test_space_behind_the_end_of_a_file_is_taken_back(self, arbiter: Arbiter) -> None:
        answer = wire.exchange(arbiter.make("a", GIB), wire.hello_message())
        keep_size, offset, size = 1, c.c_long(0), c.c_long(64 * MIB)
        for fd in (answer.fds[1], answer.fds[3]):
            assert c.CDLL(None).fallocate(fd, keep_size, offset, size) == 0
            assert os.fstat(fd).st_blocks * 512 >= 64 * MIB
        wait_until(
            lambda: all(
                os.fstat(fd).st_blocks * 512 <= os.fstat(fd).st_size + 4 * MIB
                for fd in (answer.fds[1], answer.fds[3])
            )
        )
        for each in answer.fds:
            os.close(each)


class TestLimits:
    def test_a_rewritten_page_changes_no_limit(self, arbiter: Arbiter) -> None:
        directory = arbiter.make("a", GIB)
        write_at(directory / "limits", LIMIT_AT, struct.pack("<Q", 79 * GIB))
        assert memory(arbiter) == GIB
        assert arbiter.granted()[0] == GIB
        os.kill(arbiter.serving_pid(), signal.SIGKILL)
        wait_until(arbiter.answers)
        assert memory(arbiter) == GIB
        assert shown_limit(directory) == GIB

    def test_a_rewritten_life_does_not_end_the_arbiter(self, arbiter: Arbiter) -> None:
        directory = arbiter.make("a", GIB)
        serving = arbiter.serving_pid()
        write_at(directory / "limits", LIFE_AT, struct.pack("<I", 0x7FFFFFFF))
        grant = arbiter.grant("a")
        assert grant
        assert (grant["life"], grant["broken"]) == ("owned", None)
        assert arbiter.serving_pid() == serving
        os.kill(serving, signal.SIGKILL)
        wait_until(arbiter.answers)
        assert (arbiter.grant("a") or {})["broken"] is None

    def test_every_change_is_shown_to_tenants(self, arbiter: Arbiter) -> None:
        directory = arbiter.make("a", GIB)
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        assert holding.limits.slice().limit == GIB
        assert holding.limits.process(holding.slot).pid == os.getpid()
        assert "slices" in arbiter.ask(f"resize name=a slice={GPU},memory={2 * GIB}")
        assert holding.limits.slice().limit == 2 * GIB
        assert "slices" in arbiter.ask(f"resize name=a slice={GPU},memory={GIB // 2}")
        assert (holding.limits.slice().limit, memory(arbiter)) == (GIB // 2, GIB // 2)

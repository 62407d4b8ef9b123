"""A grant's socket: joining, and cleaning up after a process has died."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from support import GIB, MIB, compile_library, on_this_machine, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Owner, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[[Path, str], Owner]

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: other users, a small file system"
)


OLD_KERNEL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
    int (*real)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    if (level == SOL_SOCKET && option == 77 /* SO_PEERPIDFD */) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return real(fd, level, option, value, size);
}
"""


@pytest.fixture
def old_kernel(tmp_path: Path, native_dir: Path) -> Path:
    """A library to preload: behaves like a kernel before Linux 6.5."""
    if b"__asan_init" in (native_dir / "bin" / "aliquot-arbiter").read_bytes():
        pytest.skip("AddressSanitizer must be the first library")
    return compile_library(tmp_path, "libold.so", OLD_KERNEL)


def wait_for_looks(serving: int, count: int = 3) -> None:
    """Wait until an otherwise idle arbiter has checked its dead processes that often."""
    status = Path(f"/proc/{serving}/status")

    def switches() -> int:
        (line,) = (one for one in status.read_text().splitlines() if one.startswith("voluntary"))
        return int(line.split()[1])

    enough = switches() + count
    wait_until(lambda: switches() >= enough)


class TestHello:
    def test_gives_a_slot_and_the_pages(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        answer = wire.exchange(directory, wire.message(wire.HELLO, 77))
        assert (answer.kind, answer.value, len(answer.fds)) == (wire.WELCOME, 0, 4)
        with pytest.raises(PermissionError):
            mmap.mmap(answer.fds[0], 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)
        holding = wire.Holding.of(answer)
        magic, version, size, name, slices, uid, owner, *_ = holding.limits.header()
        assert magic.to_bytes(8, "little") == b"ALIQLIM1"
        assert (version, size, slices) == (1, wire.LIMITS_SIZE, 1)
        assert name.rstrip(b"\0") == b"a"
        assert (uid, owner) == (os.getuid(), os.getpid())
        assert holding.limits.slice().limit == 8 * GIB
        assert holding.limits.process(0) == wire.Slot(1, os.getpid(), 77, (0,) * 16)
        (process,) = (arbiter.grant("a") or {})["processes"]
        assert (process["pid"], process["inner_pid"], process["state"]) == (os.getpid(), 77, "live")

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"x", wire.MALFORMED),
            (wire.message(wire.HELLO, 1)[:-1], wire.MALFORMED),
            (wire.message(wire.HELLO, 1) + b"\0", wire.MALFORMED),
            (wire.message(wire.HELLO, 1) * 600, wire.MALFORMED),
            (wire.message(wire.HELLO, 1, magic=7), wire.MALFORMED),
            (wire.message(wire.HELLO, 1, version=1), wire.VERSION),
            (wire.message(wire.HELLO, 0), wire.MALFORMED),
            (wire.message(wire.HELLO, 1 << 40), wire.MALFORMED),
            (wire.message(wire.WELCOME, 1), wire.MALFORMED),
            (wire.message(99), wire.MALFORMED),
            (wire.message(wire.HELLO, 1)[:-112] + b"x" * 112, wire.MALFORMED),
            (wire.message(wire.MEASURE), wire.MALFORMED),
            (wire.message(wire.RING), wire.MALFORMED),
        ],
    )
    def test_an_invalid_message_is_refused_and_closed(
        self, arbiter: Arbiter, data: bytes, why: int
    ) -> None:
        directory = arbiter.make()
        with wire.connected(directory, "socket", socket.SOCK_SEQPACKET) as connection:
            connection.send(data)
            answer = wire.receive(connection)
            assert answer
            assert (answer.kind, answer.value, answer.fds) == (wire.REFUSED, why, ())
            assert answer.text
            assert wire.receive(connection) is None
        assert arbiter.states() == []

    def test_each_process_has_its_slot_and_a_forked_child_its_own(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        first, second = tenants(directory), tenants(directory)
        assert (first.hello(), second.hello()) == (0, 1)
        slot, child = first.fork()
        assert slot == 2
        first.tell("hold", 0, GIB)
        first.kill()
        wait_until(lambda: arbiter.states() == ["live", "live"])
        assert arbiter.counted() == 0
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: arbiter.states() == ["live"])
        assert tenants(directory).hello() == 0

    @needs_root
    def test_another_user_cannot_join(
        self, arbiter: Arbiter, tenants: Tenants, short_tmp: Path
    ) -> None:
        short_tmp.chmod(0o755)
        tenant = tenants(arbiter.make("mine"))
        request = f"make+name=theirs+slice={GPU},memory={GIB}"
        told = tenant.tell("as-nobody", arbiter.state, request)
        refused, stopped, resized, uid, welcomed = told.split()
        assert refused == f"{wire.REFUSED}/{wire.OWNER}"
        assert stopped == "not-allowed"
        assert resized == "no-such-grant"
        assert int(uid) == 65534
        assert int(welcomed) == wire.WELCOME
        wait_until(lambda: arbiter.grant("theirs") is None)

    def test_a_kernel_without_peer_pidfds(
        self, stopped_arbiter: Arbiter, tenants: Tenants, old_kernel: Path
    ) -> None:
        stopped_arbiter.machine.variables["LD_PRELOAD"] = str(old_kernel)
        stopped_arbiter.start()
        tenant = tenants(stopped_arbiter.make())
        assert tenant.hello() == 0
        tenant.tell("hold", 0, GIB)
        tenant.kill()
        wait_until(lambda: stopped_arbiter.counted() == 0)

    def test_a_full_grant_refuses_processes(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        parent = tenants(directory)
        slots = [parent.fork()[0] for _ in range(wire.MAX_PROCESSES)]
        assert slots == list(range(wire.MAX_PROCESSES))
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.FULL)
        parent.close()
        wait_until(lambda: arbiter.states() == [])
        assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME


class TestDeath:
    def test_memory_of_a_killed_process_is_given_back(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        tenant, survivor = tenants(directory), tenants(directory)
        tenant.hello()
        survivor.hello()
        tenant.tell("hold", 0, 3 * GIB)
        survivor.tell("hold", 0, 512)
        assert arbiter.counted() == 3 * GIB + 512
        tenant.kill()
        wait_until(lambda: arbiter.counted() == 512)
        assert arbiter.states() == ["live"]

    def test_a_dead_process_is_ending_while_the_gpu_lists_it(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        slot = tenant.hello()
        watcher = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        tenant.tell("hold", 0, 3 * GIB)
        machine.list_process(tenant.pid, 3 * GIB + 500 * MIB)
        assert tenant.tell("measure") == "measured"
        tenant.kill()
        wait_until(lambda: "ending" in arbiter.states())
        assert arbiter.counted() == 3 * GIB
        assert watcher.limits.process(slot).state == 2
        assert watcher.limits.slice().driver == 500 * MIB
        machine.drop_process(tenant.pid)
        wait_until(lambda: arbiter.states() == ["live"])
        assert arbiter.counted() == 0
        assert watcher.limits.slice().driver == 0
        assert watcher.limits.process(slot).state == 0

    def test_each_gpu_gives_back_separately(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        arbiter.ask(f"make name=a slice={GPU},memory={GIB} slice={OTHER_GPU},memory={GIB}")
        tenant = tenants(arbiter.state / "grants" / "a")
        tenant.hello()
        tenant.tell("hold", 0, MIB)
        tenant.tell("hold", 1, MIB)
        machine.list_process(tenant.pid, MIB, OTHER_GPU)
        tenant.kill()

        def counts() -> list[int]:
            grant = arbiter.grant("a")
            assert grant
            return [one["counted_bytes"] for one in grant["slices"]]

        wait_until(lambda: counts() == [0, MIB])
        machine.drop_process(tenant.pid, OTHER_GPU)
        wait_until(lambda: counts() == [0, 0])

    def test_cleanup_waits_while_the_gpu_lists_the_process(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants, owners: Owners
    ) -> None:
        owner = owners(arbiter.state, f"make name=a slice={GPU},memory={2 * GIB}")
        tenant = tenants(owner.directory)
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        machine.list_process(tenant.pid, GIB)
        tenant.kill()
        owner.kill()
        said = f"GPU 0 still lists dead process {tenant.pid}: a child of it may be alive"
        wait_until(lambda: said in arbiter.log.read_text())
        serving = arbiter.serving_pid()
        machine.fail_lists()  # for less than 5 s: no proof of anything
        wait_for_looks(serving)
        machine.fail_lists(fail=False)
        wait_for_looks(serving)
        assert arbiter.states() == ["ending"]
        assert arbiter.counted() == GIB
        assert arbiter.log.read_text().count(said) == 1
        machine.drop_process(tenant.pid)
        wait_until(lambda: arbiter.grant("a") is None)

    @pytest.mark.shares
    def test_memory_is_given_back_after_5_s_if_nvml_cannot_tell(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        machine.list_process(tenant.pid, GIB)
        machine.fail_lists()
        tenant.kill()
        dead_at = time.monotonic()
        wait_until(lambda: arbiter.states() == [])
        took = time.monotonic() - dead_at
        assert 4.5 < took < on_this_machine(10)
        assert arbiter.counted() == 0
        assert "dead for 5 s" in arbiter.log.read_text()

    def test_a_grant_ends_with_its_owner_and_its_last_process(
        self, arbiter: Arbiter, tenants: Tenants, owners: Owners
    ) -> None:
        owner = owners(arbiter.state, f"make name=a slice={GPU},memory={GIB}")
        tenant = tenants(owner.directory)
        tenant.hello()
        owner.kill()
        wait_until(lambda: not (arbiter.grant("a") or {})["owner_alive"])
        assert arbiter.states() == ["live"]
        tenant.kill()
        wait_until(lambda: arbiter.grant("a") is None)
        assert not owner.directory.exists()
        assert arbiter.status()["gpus"][0]["granted_bytes"] == 0

    def test_a_grant_without_processes_ends_with_its_owner(
        self, arbiter: Arbiter, owners: Owners
    ) -> None:
        owner = owners(arbiter.state, f"make name=a slice={GPU},memory={GIB}")
        owner.kill()
        wait_until(lambda: arbiter.grant("a") is None)
        assert not owner.directory.exists()
        arbiter.make("a")

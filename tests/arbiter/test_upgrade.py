"""A newer arbiter takes over from an older one while programs run.

The older ones are built from this repository's history: the last commit of each earlier version of
the state directory (native/arbiter/state.h), and the commit before this one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.older import build_arbiter, has_history
from arbiter.rig import GPU, contend
from support import GIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Tenant

    Tenants = Callable[[Path], Tenant]

LAST_OF_VERSION_1 = "fbeda2371599fa7e3ba56a132d5b337690669449"


@pytest.fixture(scope="module", params=["version 1", "the commit before"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_history():
        pytest.skip("this is not a checkout of the repository: it has no earlier commits")
    commit = LAST_OF_VERSION_1 if request.param == "version 1" else "HEAD~1"
    return build_arbiter(commit, tmp_path_factory.mktemp("older"))


def upgrade(arbiter: Arbiter, newer: Path) -> None:
    assert arbiter.end() == 0
    arbiter.program = newer
    arbiter.start()


def pages_are_kept(older: Path) -> bool:
    """Whether that arbiter has pages in files; those of version 1 ended with it."""
    return b"private" in older.read_bytes()


def test_programs_and_their_limits_are_adopted(
    stopped_arbiter: Arbiter, older: Path, tenants: Tenants
) -> None:
    newer, stopped_arbiter.program = stopped_arbiter.program, older
    stopped_arbiter.start()
    pair = contend(stopped_arbiter, tenants, (25, 75))
    for tenant in pair:
        tenant.tell("hold", 0, 1 << 20)
    parked = stopped_arbiter.make("parked", GIB)
    assert wire.exchange(parked, wire.hello_message()).kind == wire.WELCOME
    stopped_arbiter.set_state("parked", "parked")
    upgrade(stopped_arbiter, newer)
    assert (stopped_arbiter.state / "version").read_text() == "2\n"
    for name, tenant, percent in zip("ab", pair, (25, 75), strict=True):
        grant = stopped_arbiter.grant(name)
        assert grant
        assert grant["broken"] is None
        assert grant["slices"][0]["compute_percent"] == percent
        assert grant["slices"][0]["counted_bytes"] == 1 << 20
        (process,) = grant["processes"]
        assert (process["pid"], process["state"]) == (tenant.pid, "live")
        if pages_are_kept(older):
            assert process["ungated"] is None
        else:
            assert process["ungated"] == (
                "its pages are lost: an arbiter of an older version made it"
            )
            assert tenant.credit().is_open
        before = tenant.done()
        wait_until(lambda: tenant.done() > before + 20)  # noqa: B023 - called here
        assert "slices" in stopped_arbiter.ask(f"resize name={name} slice={GPU},memory={8 << 20}")
    assert stopped_arbiter.grant_state("parked") == "parked"
    assert stopped_arbiter.granted()[0] == 16 << 20
    for tenant in pair:  # a new program gets pages, whatever the old one had
        tenant.tell("rest")
        tenant.exec()
        tenant.run()
    wait_until(stopped_arbiter.is_contended)
    for tenant in pair:
        tenant.kill()
    wait_until(lambda: [stopped_arbiter.counted(name) for name in "ab"] == [0, 0])


def test_a_record_without_the_newest_fields_is_adopted(arbiter: Arbiter) -> None:
    """Fields are added at the end of the record; where they are missing they are zero."""
    arbiter.make("a", GIB)
    record = arbiter.record()
    arbiter.kill()
    os.truncate(record, wire.LIMITS_SIZE)
    arbiter.start()
    grant = arbiter.grant("a")
    assert grant
    assert (grant["broken"], grant["slices"][0]["memory_bytes"]) == (None, GIB)
    assert record.stat().st_size > wire.LIMITS_SIZE


def test_a_killed_upgrade_is_continued(
    stopped_arbiter: Arbiter, older: Path, tenants: Tenants
) -> None:
    """The new arbiter dies before it has written the version: the next one adopts the rest."""
    newer, stopped_arbiter.program = stopped_arbiter.program, older
    stopped_arbiter.start()
    tenant = tenants(stopped_arbiter.make("a", GIB))
    tenant.run()
    stopped_arbiter.make("b", GIB)
    upgrade(stopped_arbiter, newer)
    records = Path(stopped_arbiter.status()["records"])
    stopped_arbiter.kill()
    if not pages_are_kept(older):
        (stopped_arbiter.state / "version").unlink()
        shutil.rmtree(records / "b")
    stopped_arbiter.start()
    assert {one["name"]: one["broken"] for one in stopped_arbiter.status()["grants"]} == {
        "a": None,
        "b": None,
    }
    assert stopped_arbiter.states("a") == ["live"]

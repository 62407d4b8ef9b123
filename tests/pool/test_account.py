"""The account that a worker runs with: groups, limits and PAM."""

from __future__ import annotations

import os
import pwd
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.pool.account import AccountError, become, look_up, session
from users import needs_root

if TYPE_CHECKING:
    from aliquot.pool.account import Account

CAP_SYS_RESOURCE = 24


@pytest.fixture
def nobody() -> Account:
    entry = pwd.getpwnam("nobody")
    return look_up(entry.pw_uid, entry.pw_gid)


def test_a_user_without_a_name_has_its_own_group_alone() -> None:
    account = look_up(4001, 4005)
    assert (account.uid, account.gid, account.groups, account.name) == (4001, 4005, (4005,), None)


def test_an_account_that_is_gone_or_another_users_now_starts_nothing(nobody: Account) -> None:
    with pytest.raises(AccountError, match="alice \\(64999\\) does not exist any more"):
        look_up(64999, 64999, "alice")
    with pytest.raises(AccountError, match="was alice's and is nobody's now"):
        look_up(nobody.uid, nobody.gid, "alice")
    assert look_up(64999, 64999, "64999").name is None
    assert look_up(nobody.uid, nobody.gid, "nobody") == nobody


def test_a_group_that_the_user_is_not_in_is_not_given(nobody: Account) -> None:
    account = look_up(nobody.uid, 0)
    assert account == nobody
    assert 0 not in account.groups


def has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    held = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(held.split()[1], 16) >> number & 1)


@needs_root
class TestSession:
    def test_limits_of_pam_are_the_commands_and_not_the_supervisors(
        self, tmp_path: Path, nobody: Account
    ) -> None:
        limits = tmp_path / "limits.conf"
        limits.write_text("nobody hard core 123\nnobody soft core 100\n")
        (tmp_path / "aliquot").write_text(
            "auth required pam_permit.so\n"
            "account required pam_permit.so\n"
            f"session required pam_limits.so conf={limits}\n"
        )
        before = resource.getrlimit(resource.RLIMIT_CORE)
        umask = os.umask(0o077)
        try:
            with session(nobody, tmp_path) as inherited:
                if has_capability(CAP_SYS_RESOURCE):
                    assert resource.getrlimit(resource.RLIMIT_CORE) == before
                assert inherited.limits[resource.RLIMIT_CORE] == (100 << 10, 123 << 10)
                assert inherited.umask == 0o022
                child = os.fork()
                if child == 0:
                    become(nobody, inherited)
                    fine = resource.getrlimit(resource.RLIMIT_CORE) == (100 << 10, 123 << 10)
                    fine = fine and os.getresuid() == (nobody.uid,) * 3
                    os._exit(0 if fine and set(os.getgroups()) == set(nobody.groups) else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert os.umask(0o077) == 0o077
        finally:
            os.umask(umask)

    def test_an_account_that_pam_refuses_starts_nothing(
        self, tmp_path: Path, nobody: Account
    ) -> None:
        (tmp_path / "aliquot").write_text("account required pam_deny.so\n")
        with pytest.raises(AccountError, match="PAM refuses nobody"), session(nobody, tmp_path):
            pytest.fail("it was opened")

    def test_without_a_pam_service_limits_are_as_they_are(
        self, tmp_path: Path, nobody: Account
    ) -> None:
        with session(nobody, tmp_path) as inherited:
            assert inherited.limits == {}

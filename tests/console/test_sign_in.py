"""Who may use the console: tokens, links, sessions, and what other sites cannot do."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aliquot.console.sign_in import (
    CODE_SECONDS,
    SET_BACK_SECONDS,
    SignIn,
    make_code,
    read_token,
)
from aliquot.model.errors import StateError
from console.conftest import (
    CHALLENGE,
    Console,
    end_console,
    full_disk,
    signature,
    start_console,
)
from pool.conftest import PoolUp

TOKEN = "0" * 64


def test_without_the_token_nothing_is_shown(console: Console) -> None:
    for path in ("/machine", "/gpus", "/grants", "/jobs", "/events", "/session", "/nothing"):
        for given in (None, "Bearer ", f"Bearer {TOKEN}", f"Basic {console.token}"):
            found = console.problem(401, "GET", f"/api/v1{path}", authorization=given)
            assert found["hint"] == "Get a link with: aliquot console"
    for given in ("", "token", f"token {TOKEN}", f"token {console.token}", f"{console.code} x"):
        headers = {"authorization": None, "x_aliquot_key": given}
        console.problem(401, "POST", "/api/v1/session", **headers)
        console.problem(401, "GET", "/api/v1/gpus", **headers)
    assert console.ask("GET", "/api/v1/openapi.json", authorization=None).status == 200


def test_a_link_works_once_and_opens_nothing_but_a_session(console: Console) -> None:
    name, _, key = console.code.rpartition(".")
    headers = console.signed(name, key)
    console.problem(401, "GET", "/api/v1/gpus", **headers)
    begun = console.ask("POST", "/api/v1/session", **headers)
    assert begun.status == 200
    assert "set-cookie" not in begun.headers, "a cookie goes to whoever takes the port"
    again = console.problem(401, "POST", "/api/v1/session", **headers)
    assert again["hint"] == "Get a link with: aliquot console"
    assert console.prove(name).status == 401
    own = console.signed(begun.json["name"], begun.json["key"])
    assert console.get("/session", **own) == {"kind": "session"}
    assert console.get("/gpus", **own)["items"]


def test_a_console_proves_itself_only_for_its_own_address(console: Console) -> None:
    """Another program on the port cannot pass on what a console at another port says."""
    assert console.prove("token", host=f"localhost:{console.host.partition(':')[2]}").status == 200
    assert console.prove("token", host="127.0.0.1:1").status == 421
    for name in ("", "nobody", "session.1.x", "session.9999999999.x", "code.1.2.x", "token.x"):
        assert console.prove(name).status in {400, 401}, name
    for challenge in ("", "x" * 32, "0" * 31, "0" * 33):
        body = {"name": "token", "challenge": challenge}
        console.problem(400, "POST", "/api/v1/proof", body, authorization=None)


def test_what_a_page_sent_to_one_console_opens_no_other(
    console: Console, pool: PoolUp, cli_env: dict[str, str]
) -> None:
    """A program that has taken the port has at most what pages sent to the console before it."""
    headers = console.open_session()
    assert console.get("/gpus", **headers)["items"]
    end_console(console)
    port = console.host.partition(":")[2]
    again = start_console(pool, cli_env, "--listen", f"127.0.0.1:{port}")
    try:
        assert again.host == console.host
        again.problem(401, "GET", "/api/v1/gpus", **headers)
    finally:
        end_console(again)


def test_a_session_outlives_the_console_and_a_link_does_not(
    console: Console, pool: PoolUp, cli_env: dict[str, str]
) -> None:
    begun = console.ask("POST", "/api/v1/session", **console.signed("token", console.token)).json
    end_console(console)
    port = console.host.partition(":")[2]
    again = start_console(pool, cli_env, "--listen", f"127.0.0.1:{port}")
    try:
        assert again.token == console.token
        assert again.get("/session", **again.signed(begun["name"], begun["key"]))
        assert again.prove(console.code.rpartition(".")[0]).status == 401
    finally:
        end_console(again)


def test_a_request_to_another_host_is_refused(console: Console) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1", "", "localhost"):
        found = console.problem(421, "GET", "/api/v1/gpus", host=host)
        assert "--server-name" in found["hint"]
        assert console.ask("GET", "/", host=host).status == 421


def test_a_page_of_another_origin_is_refused(console: Console) -> None:
    port = console.host.partition(":")[2]
    for origin in ("http://evil.example", "null", f"http://evil.example:{port}"):
        console.problem(403, "GET", "/api/v1/gpus", origin=origin)
    console.problem(403, "GET", "/api/v1/gpus", sec_fetch_site="cross-site")
    assert console.ask("GET", "/api/v1/gpus", origin=f"http://{console.host}").status == 200
    local = f"localhost:{port}"
    assert console.ask("GET", "/api/v1/gpus", host=local, origin=f"http://{local}").status == 200


def test_every_answer_has_the_headers_that_protect_a_page(console: Console) -> None:
    for path in ("/api/v1/gpus", "/api/v1/nothing", "/nothing"):
        headers = console.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_base_path_names_and_frames_can_be_chosen(pool: PoolUp, cli_env: dict[str, str]) -> None:
    options = ("--base-path", "/gpu/", "--server-name", "gpu.example.org")
    console = start_console(pool, cli_env, *options, "--frame-ancestor", "https://portal.example")
    try:
        assert console.address.endswith("/gpu/")
        assert len(console.get("/gpus", host="gpu.example.org")["items"]) == 4
        assert console.get("/openapi.json")["servers"] == [{"url": "/gpu/api/v1"}]
        answer = console.ask("GET", "/api/v1/gpus", **console.signed("token", console.token))
        assert answer.status == 200
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors https://portal.example" in policy
        assert "x-frame-options" not in answer.headers
    finally:
        end_console(console)


def test_the_body_is_checked(console: Console) -> None:
    for body in (b"{", b"[]", b'"x"', b"{}", b'{"name": 1}', b'{"names": "x"}', b"[" * 100_000):
        assert console.problem(400, "POST", "/api/v1/proof", body)["detail"]
    console.problem(400, "POST", "/api/v1/proof", b"name=x", content_type="text/plain")
    console.problem(413, "POST", "/api/v1/proof", b" " * (1 << 20))
    console.problem(405, "PUT", "/api/v1/gpus", {})
    console.problem(404, "GET", "/api/v1/nothing")


def test_the_token_is_this_users_alone(tmp_path: Path, console: Console, pool: PoolUp) -> None:
    file = pool.state / "console" / "token"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(console.token) == 64
    folder = tmp_path / "console"
    token = read_token(folder)
    assert read_token(folder) == token
    for spoil in (lambda p: p.chmod(0o640), lambda p: os.truncate(p, 3)):
        read_token(folder)
        spoil(folder / "token")
        with pytest.raises(StateError, match="only this user can read"):
            read_token(folder)
        (folder / "token").unlink()


def test_a_token_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with full_disk(10), pytest.raises(OSError, match="large"):
        read_token(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with ThreadPoolExecutor(8) as starts:
        assert len(set(starts.map(read_token, [tmp_path] * 8))) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["token"]


def test_codes_and_sessions_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    def accepts(name: str) -> bool:
        return checks.prove(name, CHALLENGE, "here") is not None

    early = make_code(TOKEN).rpartition(".")[0]
    now[0] = 2000.0
    checks = SignIn(TOKEN, since=1500.0)
    assert not accepts(early), "it is older than the console"
    late, session = make_code(TOKEN).rpartition(".")[0], checks.new_session().name
    assert accepts(late)
    assert accepts(session)
    assert not accepts(late.replace("code", "session"))
    assert not accepts(session.replace("session", "code"))
    now[0] += CODE_SECONDS + 1
    assert not accepts(late)
    now[0] += 12 * 3600
    assert not accepts(session)
    for name in ("session.nan.x", "session.inf.x", "session.-1.x", "session.².x", "session.9e9.x"):
        assert not accepts(name)


def test_a_clock_that_is_set_back_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    checks = SignIn(TOKEN, since=now[0])
    session = checks.new_session().name
    before = make_code(TOKEN).rpartition(".")[0]
    now[0] -= SET_BACK_SECONDS - 1
    for name in (session, before, make_code(TOKEN).rpartition(".")[0]):
        assert checks.prove(name, CHALLENGE, "here") is not None
    now[0] -= 7200
    assert checks.prove(make_code(TOKEN).rpartition(".")[0], CHALLENGE, "here") is not None
    for name in (session, before):
        assert checks.prove(name, CHALLENGE, "here") is None, "it would be accepted for too long"


def test_a_credential_is_accepted_only_with_its_own_signature() -> None:
    checks, others = SignIn(TOKEN, 0.0), SignIn("1" * 64, 0.0)
    mine, theirs = checks.new_session(), others.new_session()

    def signed(name: str, key: str, host: str = "here", run: str = checks.run) -> str:
        return f"{name} {signature(key, f'page:{host}{chr(10)}{run}')}"

    assert checks.accepts(signed(mine.name, mine.key), "here") == mine.name
    for wrong in (
        signed(theirs.name, theirs.key),
        signed(mine.name, theirs.key),
        signed(mine.name, mine.key, host="there"),
        signed(mine.name, mine.key, run=others.run),
        mine.name,
        f"{mine.name} {mine.key}",
        f"{mine.name} ",
        "",
    ):
        assert checks.accepts(wrong, "here") is None, wrong
    checks.end_session(mine.name)
    assert checks.accepts(signed(mine.name, mine.key), "here") is None
    assert checks.prove(mine.name, CHALLENGE, "here") is None

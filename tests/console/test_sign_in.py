"""Who may use the console: tokens, links, sessions, and what other sites cannot do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.console.sign_in import CODE_SECONDS, SignIn, make_code, read_token
from aliquot.model.errors import StateError
from console.conftest import Console, end_console, start_console
from pool.conftest import PoolUp

TOKEN = "0" * 64


def sign_in(console: Console) -> tuple[str, str]:
    """The cookie and the CSRF value of a new session."""
    body = {"token": console.token}
    answer = console.ask("POST", "/api/v1/session", body, authorization=None)
    assert answer.status == 200
    return answer.headers["set-cookie"].partition(";")[0], answer.json["csrf"]


def test_without_the_token_nothing_is_shown(console: Console) -> None:
    for path in ("/machine", "/gpus", "/grants", "/jobs", "/events", "/session", "/nothing"):
        for given in (None, "Bearer ", f"Bearer {TOKEN}", f"Basic {console.token}"):
            found = console.problem(401, "GET", f"/api/v1{path}", authorization=given)
            assert found["hint"] == "Get a link with: aliquot console"
    for body in ({"token": TOKEN}, {"token": ""}, {"code": console.code[:-1] + "x"}):
        console.problem(401, "POST", "/api/v1/session", body, authorization=None)
    assert console.ask("GET", "/api/v1/openapi.json", authorization=None).status == 200


def test_a_link_works_once(console: Console) -> None:
    body = {"code": console.code}
    answer = console.ask("POST", "/api/v1/session", body, authorization=None)
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    again = console.problem(401, "POST", "/api/v1/session", body, authorization=None)
    assert "used" in again["detail"]
    session, csrf = cookie.partition(";")[0], answer.json["csrf"]
    found = console.get("/session", authorization=None, cookie=session, x_aliquot_csrf=csrf)
    assert found["csrf"] == csrf


def test_a_session_outlives_the_console_and_a_link_does_not(
    console: Console, pool: PoolUp, cli_env: dict[str, str]
) -> None:
    cookie, csrf = sign_in(console)
    end_console(console)
    port = console.host.partition(":")[2]
    again = start_console(pool, cli_env, "--listen", f"127.0.0.1:{port}")
    try:
        assert again.token == console.token
        assert again.get("/session", authorization=None, cookie=cookie, x_aliquot_csrf=csrf)
        old = {"code": console.code}
        again.problem(401, "POST", "/api/v1/session", old, authorization=None)
    finally:
        end_console(again)


def test_a_write_of_a_session_needs_its_csrf_value(console: Console) -> None:
    cookie, csrf = sign_in(console)
    _, other = sign_in(console)
    for given in (None, "", other):
        found = console.problem(
            403,
            "DELETE",
            "/api/v1/session",
            authorization=None,
            cookie=cookie,
            x_aliquot_csrf=given,
        )
        assert found["type"].endswith("csrf")
    answer = console.ask(
        "DELETE", "/api/v1/session", authorization=None, cookie=cookie, x_aliquot_csrf=csrf
    )
    assert answer.status == 204


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
        answer = console.ask("POST", "/api/v1/session", {"code": console.code})
        assert "Path=/gpu;" in answer.headers["set-cookie"]
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors https://portal.example" in policy
        assert "x-frame-options" not in answer.headers
    finally:
        end_console(console)


def test_the_body_is_checked(console: Console) -> None:
    for body in (b"{", b"[]", b'"x"', b"{}", b'{"token": 1}', b'{"tokens": "x"}', b"[" * 100_000):
        assert console.problem(400, "POST", "/api/v1/session", body)["detail"]
    both = {"token": console.token, "code": console.code}
    console.problem(400, "POST", "/api/v1/session", both)
    console.problem(400, "POST", "/api/v1/session", b"token=x", content_type="text/plain")
    console.problem(413, "POST", "/api/v1/session", b" " * (1 << 20))
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


def test_codes_and_sessions_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    early = make_code(TOKEN)
    now[0] = 2000.0
    checks = SignIn(TOKEN, since=1500.0)
    assert not checks.accepts_code(early), "it is older than the console"
    late, session = make_code(TOKEN), checks.new_session()
    assert not checks.accepts_session(late), "a code is no session"
    assert not checks.accepts_code(session)
    assert checks.accepts_session(session)
    now[0] += CODE_SECONDS + 1
    assert not checks.accepts_code(late)
    now[0] += 12 * 3600
    assert not checks.accepts_session(session)
    assert not checks.accepts_session("nan.x.y")

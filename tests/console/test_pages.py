"""The console's pages in a real browser: Debian's Chromium, on a pool of simulated GPUs."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from conftest import aliquot_command
from console.browser import axe_violations, browser, check_page, needs_chromium, new_page
from console.conftest import SLEEPS, Console, end_console, start_console
from pool.conftest import SHAPE, PoolUp
from support import GIB, wait_until

TENANT = Path(__file__).parents[2] / "demo" / "tenant.py"

__all__ = ["browser"]

pytestmark = needs_chromium


@pytest.fixture
def page(browser: Browser, console: Console) -> Iterator[Page]:
    """A page that has signed in by the link. Errors in the browser's console fail the test."""
    with new_page(browser) as found:
        found.goto(console.link)
        expect(found.get_by_role("heading", name="GPUs", level=1)).to_be_visible()
        yield found


class Tenant:
    """A program in a slice, which takes memory and works when it is told to."""

    def __init__(self, env: dict[str, str], name: str, size: int, *options: str) -> None:
        command = [aliquot_command(), "run", "--simulate", SHAPE, "--name", name, *options, "--"]
        self.process = subprocess.Popen(
            [*command, sys.executable, TENANT.name, str(size)],
            env=env,
            cwd=TENANT.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def tenants(cli_env: dict[str, str]) -> Iterator[Callable[..., Tenant]]:
    """Starts programs in slices; they end with the test."""
    started: list[Tenant] = []

    def start(name: str, size: int, *options: str) -> Tenant:
        started.append(Tenant(cli_env, name, size, *options))
        return started[-1]

    yield start
    for one in started:
        one.end()


def slide(slider: Locator, value: int) -> None:
    """Move a slider as a hand does: the page hears of it."""
    slider.evaluate(
        "(one, value) => { one.value = value;"
        " one.dispatchEvent(new Event('input', {bubbles: true})) }",
        value,
    )


def test_a_slice_appears_and_gets_more_when_it_is_resized(
    page: Page, tenants: Callable[..., Tenant]
) -> None:
    mine = tenants("mine", 2 * GIB, "--memory", "8GiB", "--compute", "30")
    row = page.get_by_role("listitem").filter(has_text="mine")
    expect(row).to_contain_text("of 8 GiB")
    expect(row).to_contain_text("of 30 %")
    row.get_by_role("link", name="mine").click()
    expect(page.get_by_role("heading", name="mine", level=1)).to_be_focused()
    mine.tell(f"take {6 * GIB}")
    memory = page.locator(".meter").filter(has_text="Memory").locator(".figure")
    expect(memory).to_have_text(re.compile(r"^[6-8](\.\d)? of 8 GiB"))
    slide(page.get_by_role("slider", name="Memory"), 16 * GIB)
    slide(page.get_by_role("slider", name="Compute"), 50)
    effect = page.locator(".effect")
    expect(effect).to_contain_text("memory 8 GiB → 16 GiB")
    expect(effect).to_contain_text("compute 30 % → 50 %")
    expect(page.get_by_text("aliquot resize mine --memory 16GiB --compute 50")).to_be_visible()
    expect(memory).to_contain_text("of 8 GiB")  # the effect was shown, and nothing changed
    page.get_by_role("button", name="Apply").click()
    expect(effect).to_contain_text("Resized.")
    mine.tell(f"take {12 * GIB}")
    expect(memory).to_have_text(re.compile(r"^1[2-5](\.\d)? of 16 GiB"))
    slide(page.get_by_role("slider", name="Memory"), 1 * GIB)
    expect(effect.get_by_role("alert")).to_contain_text("its limit cannot be 1 GiB")
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    mine.end()
    expect(page.get_by_text("This slice is no longer there")).to_be_visible()


def test_a_job_is_explained_submitted_and_says_why_it_waits(page: Page, pool: PoolUp) -> None:
    pool.submit("--name", "all", "--workers", "4", "--time", "1h", "--", *SLEEPS)
    pool.wait_for("all", "Running")
    page.get_by_role("link", name="Submit").click()
    form = page.get_by_role("form", name="Submit")
    form.get_by_label("Command").fill("/bin/sh -c 'echo hello; sleep 600'")
    form.get_by_label("Name").fill("later")
    form.get_by_label("Memory").fill("20GiB")
    explained = page.get_by_role("region", name="Where it would go")
    expect(explained).to_contain_text("It would wait")
    same = "aliquot submit --name later --memory 20GiB -- /bin/sh -c 'echo hello; sleep 600'"
    expect(explained).to_contain_text(same)
    form.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("heading", name="later", level=1)).to_be_visible()
    waits = page.get_by_role("region", name="Why it waits")
    expect(waits).to_contain_text("job 1")
    expect(waits).to_contain_text("place 1 of 1")
    expect(waits).to_contain_text("starts by")
    pool.ask("cancel", "all")
    expect(page.get_by_role("region", name="Log")).to_contain_text("hello")
    page.get_by_role("button", name="Suspend").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("button", name="Yes, end it").click()
    pool.wait_for("later", "Cancelled")
    history = page.get_by_role("region", name="History")
    expect(history).to_contain_text("Cancelled")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_text("No jobs.")).to_be_visible()
    page.get_by_role("button", name="All").click()
    expect(page.get_by_role("link", name="later")).to_be_visible()


def test_a_wrong_token_is_refused(browser: Browser, console: Console) -> None:
    with new_page(browser) as page:
        page.goto(console.address)
        page.get_by_label("Token").fill("0" * 64)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("the token is wrong")
        assert page.get_by_role("navigation").count() == 0
        page.get_by_label("Token").fill(console.token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("region", name="GPU 3")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_the_page_recovers_after_the_console_restarts(
    page: Page, console: Console, pool: PoolUp, cli_env: dict[str, str], sleeper: str
) -> None:
    expect(page.get_by_role("link", name=sleeper)).to_be_visible()
    end_console(console)
    expect(page.get_by_role("alert")).to_contain_text("No connection")
    expect(page.get_by_role("link", name=sleeper)).to_be_visible()
    port = console.host.partition(":")[2]
    again = start_console(pool, cli_env, "--listen", f"127.0.0.1:{port}")
    try:
        expect(page.get_by_role("status")).to_have_text("live")
        expect(page.get_by_role("alert")).to_have_count(0)
    finally:
        end_console(again)


class Impostor(BaseHTTPRequestHandler):
    """A program of another user that has taken the console's port. It keeps what it is sent."""

    got: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.got.append((self.path, {key.lower(): it for key, it in self.headers.items()}, body))
        content = json.dumps({"run": "x", "proof": "0" * 64, "kind": "session"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_DELETE = do_PUT = do_POST  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        pass


def test_an_open_page_gives_nothing_to_a_program_that_takes_the_port(
    page: Page, console: Console, pool: PoolUp, cli_env: dict[str, str]
) -> None:
    end_console(console)
    port = int(console.host.partition(":")[2])
    Impostor.got.clear()
    with ThreadingHTTPServer(("127.0.0.1", port), Impostor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            alert = page.get_by_role("alert").filter(has_text="not your console")
            expect(alert).to_be_visible()
            page.get_by_role("link", name="Waste").click()  # which asks for more
            expect(page.get_by_role("heading", name="Waste", level=1)).to_be_visible()
            count = len(Impostor.got)
            wait_until(lambda: len(Impostor.got) > count + 2)
        finally:
            server.shutdown()
    for path, headers, body in Impostor.got:
        assert not {"cookie", "authorization", "x-aliquot-key"} & headers.keys()
        assert console.token.encode() not in body
        if path.startswith("/api/"):
            assert path == "/api/v1/proof", "nothing else is asked of what proves nothing"
            assert json.loads(body).keys() == {"name", "challenge"}
    again = start_console(pool, cli_env, "--listen", f"127.0.0.1:{port}")
    try:
        expect(page.get_by_role("status")).to_have_text("live")
        expect(page.get_by_role("alert")).to_have_count(0)
        assert page.context.cookies() == []
        stored = page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
        assert console.token not in stored
    finally:
        end_console(again)


def test_every_page_is_accessible_and_fits_a_phone(
    page: Page, browser: Browser, console: Console, pool: PoolUp, tenants: Callable[..., Tenant]
) -> None:
    first = ("--gpu", "0", "--compute")
    busy = [
        tenants("train", 21 * GIB, "--memory", "32GiB", *first, "50"),
        tenants("serve", 5 * GIB, "--memory", "8GiB", *first, "30", "--priority", "latency"),
        tenants("sweep-a", 30 * GIB, "--memory", "40GiB", "--gpu", "1"),
        tenants("notebook", 1 * GIB, "--memory", "16GiB", "--gpu", "1"),
    ]
    for one in busy[:3]:
        one.tell("work")
    expect(page.locator(".slices li")).to_have_count(4)
    pool.submit("--name", "finetune", "--gpus", "2", "--time", "2h", "--", *SLEEPS)
    pool.wait_for("finetune", "Running")
    lines = "for n in 1 2 3 4 5 6 7 8 9; do echo step $n loss 0.$((99 - n * 7)); done; sleep 600"
    body = {"name": "evaluate", "memory": "10GiB", "directory": "/tmp"}
    console.ask("POST", "/api/v1/jobs", {**body, "command": f"sh -c '{lines}'"})
    pool.submit("--name", "ablation", "--gpus", "2", "--", *SLEEPS)
    expect(page.locator(".slices li")).to_have_count(7)
    wait_until(lambda: console.get("/jobs/ablation")["place"])
    expect(page.locator(".cut-name", has_text="train")).to_be_visible()
    check_page(page, "gpus")
    page.locator(".slices").get_by_role("link", name="train").click()
    expect(page.locator(".chart")).to_have_count(2)
    slide(page.get_by_role("slider", name="Compute"), 60)
    expect(page.locator(".effect li").first).to_be_visible()
    check_page(page, "slice")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.locator(".jobs li")).to_have_count(3)
    check_page(page, "jobs")
    page.get_by_role("link", name="evaluate").click()
    expect(page.locator(".log")).to_contain_text("step 9")
    check_page(page, "job")
    page.get_by_role("link", name="Submit").click()
    page.get_by_label("Command").fill("python train.py --epochs 3")
    page.get_by_label("Memory").fill("24GiB")
    expect(page.locator(".verdict")).to_contain_text("It would start now")
    check_page(page, "submit")
    with new_page(browser) as other:
        other.goto(console.address)
        expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
        check_page(other, "sign-in")


def add_a_day(path: Path) -> None:
    """Write a day of GPU 0 into the console's history, with a gap of three hours."""
    now, rows = int(time.time()) // 15 * 15, []
    with closing(sqlite3.connect(path, 30)) as database:
        ((series,),) = database.execute(
            "SELECT id FROM series WHERE kind = 'gpu' ORDER BY id LIMIT 1"
        )
        for at in range(now - 86_000, now - 60, 15):
            hour = (at - now) / 3600
            if not -9 < hour < -6:
                part = (24 if hour < -15 else 56) * GIB
                busy = abs(math.sin(hour)) * (0.3 if hour < -15 else 0.9)
                used = int(part * (0.55 + 0.3 * abs(math.sin(hour / 2))))
                rows.append((series, at, used, part, int(busy * 10_000)))
        with database:
            database.executemany("INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?)", rows)


def test_pages_of_history_and_what_if_are_accessible_and_fit_a_phone(
    page: Page, console: Console, pool: PoolUp, tenants: Callable[..., Tenant]
) -> None:
    tenants("train", 21 * GIB, "--memory", "32GiB", "--gpu", "0", "--compute", "50")
    expect(page.locator(".slices li")).to_have_count(1)
    pool.submit("--name", "finetune", "--gpus", "3", "--time", "2h", "--", *SLEEPS)
    pool.wait_for("finetune", "Running")
    pool.submit("--name", "ablation", "--", *SLEEPS)
    page.get_by_role("link", name="What if").click()
    page.get_by_label("GPUs of each worker").fill("2")
    page.get_by_role("button", name="finetune").click()
    expect(page.locator(".changes li").first).to_be_visible()
    check_page(page, "what-if")
    page.get_by_role("link", name="Waste").click()
    page.get_by_label("H100 80GB HBM3").fill("2.50")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    expect(page.get_by_role("table")).to_be_visible()
    check_page(page, "waste")
    page.get_by_role("link", name="GPUs", exact=True).click()
    store = pool.state / "console" / "history.sqlite"
    wait_until(store.exists)
    wait_until(lambda: console.get("/gpus/0/history?span=month")["slices"][0]["times"])  # written
    add_a_day(store)
    page.get_by_role("link", name="GPU 0").click()
    expect(page.locator(".chart")).to_have_count(2)
    points = console.get("/gpus/0/history?span=day")["slices"][0]["times"]
    assert max(after - before for before, after in pairwise(points)) > 3 * 3600 - 60, "the gap"
    check_page(page, "gpu")
    page.get_by_role("link", name="GPUs", exact=True).click()
    page.get_by_role("button", name="Map").click()
    expect(page.get_by_role("img")).to_have_attribute("aria-label", re.compile("4 GPUs, 4 with"))
    check_page(page, "map")


def test_the_page_speaks_chinese_and_is_used_by_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("button", name="中文").focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="作业").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="作业", level=1)).to_be_focused()
    assert page.evaluate("document.documentElement.lang") == "zh"
    assert axe_violations(page) == []
    page.reload()
    expect(page.get_by_role("heading", name="作业", level=1)).to_be_visible()

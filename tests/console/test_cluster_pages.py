"""The pages of a cluster in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from console.browser import axe_violations, browser, check_page, needs_chromium, new_page
from console.conftest import Console, end_console
from console.team_cluster import TeamCluster, gang, start_cluster_console
from support import environment, wait_until

__all__ = ["browser"]

pytestmark = needs_chromium


@pytest.fixture
def teams(tmp_path: Path) -> Iterator[TeamCluster]:
    with TeamCluster(tmp_path).serving() as found:
        yield found


@pytest.fixture
def served(teams: TeamCluster) -> Iterator[Console]:
    found = start_cluster_console(teams, environment())
    yield found
    end_console(found)


def open_as(page: Page, console: Console, user: str) -> None:
    page.goto(console.link)
    page.get_by_label("Token").fill(f"token-of-{user}")
    page.get_by_role("button", name="Sign in").click()


def test_every_page_of_a_cluster_is_accessible_and_fits_a_phone(
    browser: Browser, served: Console
) -> None:
    with new_page(browser) as page:
        page.goto(served.link)
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert axe_violations(page) == []
        open_as(page, served, "alice")
        train = page.get_by_role("listitem").filter(has_text="train-0")
        expect(train).to_contain_text("team-a")
        expect(train).to_contain_text("8 GiB")
        expect(page.get_by_role("heading", name="GPU 3")).to_be_visible()
        expect(page.get_by_text("Xid 79")).to_be_visible()
        expect(page.get_by_role("main")).not_to_contain_text("team-b")
        check_page(page, "cluster-gpus")
        page.get_by_role("button", name="Map").click()
        expect(page.get_by_role("img", name="4 GPUs, 2 with slices")).to_be_visible()
        check_page(page, "cluster-map")
        page.get_by_role("link", name="Jobs", exact=True).click()
        expect(page.get_by_role("listitem").filter(has_text="large")).to_contain_text("needs 8")
        check_page(page, "cluster-jobs")
        page.get_by_role("searchbox").fill("running team-a")
        expect(page.get_by_role("listitem")).to_have_count(1)
        page.get_by_role("link", name="train", exact=True).click()
        expect(page.get_by_role("log")).to_contain_text("step 2 of train-0")
        expect(page.get_by_text("1 worker started")).to_be_visible()
        check_page(page, "cluster-job")
        page.get_by_role("link", name="Queues", exact=True).click()
        expect(page.get_by_text("0.4 of 3 GPUs")).to_be_visible()
        check_page(page, "cluster-queues")
        page.get_by_role("button", name="中文").click()
        expect(page.get_by_role("heading", name="队列", level=1)).to_be_visible()
        assert axe_violations(page) == []


def test_a_page_follows_the_cluster_and_changes_a_job(
    browser: Browser, served: Console, teams: TeamCluster
) -> None:
    with new_page(browser) as page:
        open_as(page, served, "alice")
        page.get_by_role("link", name="Jobs", exact=True).click()
        expect(page.get_by_role("link", name="notebook")).to_be_visible()
        teams.put("gangs", gang("team-a", "evening", phase="Waiting", reason="needs a node"))
        expect(page.get_by_role("listitem").filter(has_text="evening")).to_contain_text("needs a")
        page.get_by_role("link", name="train", exact=True).click()
        page.get_by_role("button", name="Suspend").click()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        assert teams.get("elasticjobs", "team-a", "train")["spec"]["suspend"] is True


def test_a_wrong_token_is_refused_and_another_team_sees_nothing_of_the_first(
    browser: Browser, served: Console
) -> None:
    with new_page(browser) as page:
        open_as(page, served, "mallory")
        expect(page.get_by_role("alert")).to_contain_text("does not accept the token")
        open_as(page, served, "bob")
        expect(page.get_by_text("You may not list gpunodes.aliquot.io")).to_be_visible()
        page.get_by_role("link", name="Jobs", exact=True).click()
        expect(page.get_by_role("link", name="secret-job")).to_be_visible()
        expect(page.get_by_role("main")).not_to_contain_text("team-a")
        page.goto(f"{served.link}#/jobs/elasticjobs/team-a/train")
        expect(page.get_by_role("alert")).to_contain_text("is forbidden")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert page.evaluate("JSON.stringify(sessionStorage)").find("token-of") < 0


def test_a_page_recovers_when_the_console_starts_again(
    browser: Browser, served: Console, teams: TeamCluster
) -> None:
    with new_page(browser) as page:
        open_as(page, served, "alice")
        expect(page.get_by_role("status")).to_have_text("live")
        end_console(served)
        expect(page.get_by_role("status")).to_have_text("reconnecting…")
        again = start_cluster_console(teams, environment(), served.host)
        try:
            wait_until(lambda: again.ask("GET", "/api/v1/gpus").status == 200)
            expect(page.get_by_role("status")).to_have_text("live")
            expect(page.get_by_role("listitem").filter(has_text="train-0")).to_be_visible()
        finally:
            end_console(again)

"""A real browser for the tests of pages: Debian's Chromium, with axe.

ALIQUOT_SCREENSHOTS names a folder for pictures of the pages (make screenshots).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

SCREENSHOTS = os.environ.get("ALIQUOT_SCREENSHOTS")
PICTURES = {
    ("gpus", "light"),
    ("gpus", "dark"),
    ("gpus", "phone"),
    ("slice", "light"),
    ("jobs", "dark"),
    ("job", "light"),
    ("submit", "light"),
    ("what-if", "light"),
    ("waste", "light"),
    ("gpu", "dark"),
    ("map", "light"),
    ("cluster-gpus", "light"),
    ("cluster-gpus", "phone"),
    ("cluster-jobs", "light"),
    ("cluster-job", "light"),
    ("cluster-queues", "dark"),
}
CHROMIUM = shutil.which("chromium")
SECONDS = 60_000  # only ends a test that hangs

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="chromium is not installed"
)
expect.set_options(timeout=SECONDS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def new_page(browser: Browser, **options: Any) -> Iterator[Page]:
    settings = {"viewport": {"width": 1280, "height": 860}, "locale": "en-GB", **options}
    context = browser.new_context(**settings)
    found = context.new_page()
    found.set_default_timeout(SECONDS)
    errors: list[str] = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield found
        assert errors == []
    finally:
        context.close()


def axe_violations(page: Page) -> list[str]:
    spec = find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    page.evaluate((Path(spec.origin).parent / "axe.min.js").read_text("utf-8"))
    found = page.evaluate("() => axe.run()")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def check_page(page: Page, name: str) -> None:
    """No violation in either theme, nothing beyond the edge of a phone; and its pictures."""
    wide, narrow = {"width": 1280, "height": 860}, {"width": 360, "height": 740}
    for theme, size in (("light", wide), ("dark", wide), ("light", narrow)):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_viewport_size(size)  # type: ignore[arg-type]
        assert size is narrow or axe_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        kind = "phone" if size is narrow else theme
        if SCREENSHOTS and (name, kind) in PICTURES:
            page.screenshot(path=Path(SCREENSHOTS) / f"console-{name}-{kind}.png")
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    page.set_viewport_size(wide)  # type: ignore[arg-type]

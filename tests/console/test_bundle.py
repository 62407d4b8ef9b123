"""The built pages are those of the sources in web/, small, and need nothing from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

from aliquot.console.assembly import STATIC

WEB = Path(__file__).parents[2] / "web"
MOST_BYTES = 150_000


def test_the_built_pages_are_those_of_the_sources() -> None:
    names = ["index.html", "package-lock.json", "tsconfig.json", "vite.config.ts"]
    inside = [path for folder in ("public", "src") for path in (WEB / folder).rglob("*")]
    names += [str(path.relative_to(WEB)) for path in inside if path.is_file()]
    found = hashlib.sha256()
    for name in sorted(names):
        found.update(f"{name}\n".encode())
        found.update((WEB / name).read_bytes())
    assert (STATIC / "sources.txt").read_text().strip() == found.hexdigest(), "run `make web`"


def test_the_pages_are_small() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MOST_BYTES


def test_the_pages_have_no_inline_script_and_ask_no_other_site() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)[^>]*>|<style| on\w+=", page) == []
    linked = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert linked
    assert all(one.startswith("./") for one in linked)


def test_the_lock_names_no_registry() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    assert not [name for name, one in lock["packages"].items() if "resolved" in one]


def test_both_languages_have_the_same_words() -> None:
    text = (WEB / "src" / "strings.ts").read_text()
    english, chinese = text.split("const zh: typeof en = {")
    key = re.compile(r"^  (\w+): ", re.MULTILINE)
    filled = re.compile(r"^  (\w+): .*?$", re.MULTILINE)
    assert key.findall(english) == key.findall(chinese.partition("\n};")[0])
    places = [
        {one[1]: sorted(re.findall(r"\{(\w+)\}", one[0])) for one in filled.finditer(part)}
        for part in (english, chinese.partition("\n};")[0])
    ]
    assert places[0] == places[1]

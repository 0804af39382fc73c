"""The site builds without a warning, its links lead somewhere, it lists all that is public, and it asks nothing of any
other host, from disk or served."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

import elman
from elman.cli import VERBS
from elman.serve.api.routes import ROUTES

ROOT = Path(__file__).parent.parent
pytest.importorskip("zensical")


class Page(HTMLParser):
    """What a page links to, what it loads, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a":
            self.links += [values["href"]] if "href" in values else []
        else:
            self.loads += [values[name] for name in ("src", "href", "data", "poster", "srcset") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; building it is an error if anything is warned of."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs" / "site" / "build.py"), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "warning" not in (built.stdout + built.stderr).lower(), built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def broken(pages: dict[Path, Page]) -> list[str]:
    """Each link and each file to load that is not there, with the page that it is on."""
    found = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            target, _, place = unquote(link).partition("#")
            if re.match(r"\w+:", target):  # elsewhere, or data in the page itself
                continue
            goal = (path.parent / target).resolve() if target else path
            if not goal.is_file() or (place and goal in pages and place not in pages[goal].ids):
                found.append(f"{path.name}: {link}")
    return found


def test_links_and_images_lead_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 60 and sum(len(page.links) for page in pages.values()) > 5000
    assert broken(pages) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text('<p id="here"><a href="#here"></a><a href="#gone"></a><a href="b.html"></a><img src="c.png"></p>')
    assert broken({path: Page(path.read_text())}) == ["a.html: #gone", "a.html: b.html", "a.html: c.png"]


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    """A plain link may lead elsewhere. What the scripts would load on demand is seen by the test in a browser."""
    assert not [load for page in pages.values() for load in page.loads if re.match(r"(https?:)?//", load)]
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style.name
    for page in site.rglob("*.html"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", page.read_text()), page.name


def public_names() -> set[str]:
    """elman.GRU, elman.hmm, elman.hmm.banded: all names that a user may import, by the shortest way."""
    names = {f"elman.{name}" for name in elman.__all__}
    for module in (import_module(f"elman.{name}") for name in elman._MODULES):
        for name in getattr(module, "__all__", ()):
            if getattr(module, name, None) is not getattr(elman, name, ()):
                names.add(f"{module.__name__}.{name}")
    return names


def test_every_public_name_is_in_the_reference(pages: dict[Path, Page]) -> None:
    listed = {name for path, page in pages.items() if path.parent.name == "api" for name in page.ids}
    assert {name.replace(".", "-") for name in public_names()} - listed == set()


def test_every_verb_setting_and_route_is_in_the_reference(site: Path) -> None:
    pages = (site / "reference" / f"{name}.html" for name in ("commands", "config", "server"))
    commands, config, server = (page.read_text() for page in pages)
    for verb in VERBS:
        assert f"usage: elman {verb}" in commands
    for task, (_, settings, _) in json.loads((ROOT / "src" / "elman" / "cli" / "settings.json").read_text()).items():
        part = config.partition(f'id="{task}"')[2].partition("<h2")[0]
        for key in keys(settings):
            assert f"<code>{key}</code>" in part, f"{task}: {key}"
    for route in ROUTES:
        assert f"<code>{route.method} {route.path}</code>" in server


def keys(settings: list, before: str = "") -> list[str]:
    """The settings with their sections, as they are written on the command line."""
    return [key for name, _, _, inner, _ in settings for key in (keys(inner, f"{before}{name}.") or [before + name])]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"[\w\-/]+\.md", navigation))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert written <= listed, f"not in the nav of mkdocs.yml: {sorted(written - listed)}"


@pytest.mark.slow
def test_it_asks_nothing_of_other_hosts_and_searches_from_disk(site: Path, browser: Callable) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "guides/language-models", "concepts/vanishing-gradients", "reference/server"):
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_timeout(200)
    page.click(".md-search__button")
    page.keyboard.type("perplexity")
    page.wait_for_selector("a[href*='language-models.html']:has-text('perplexity')", timeout=10_000)
    assert asked and all(url.startswith(("file:", "data:", "about:")) for url in asked)

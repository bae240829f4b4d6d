"""The site has every page of docs/ in its order, and CI builds it. ``make site`` checks links, anchors and diagrams."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGURATION = yaml.safe_load((ROOT / ".site/mkdocs.yml").read_text("utf-8"))
SECTIONS = ["Start", "How do I", "Kinds", "Operate", "Promises", "Reference", "Inside"]


def entries(navigation: Any) -> Iterator[str]:
    """The pages of a navigation; the name of a folder stands for all of its pages, as in .site/hooks.py."""
    if isinstance(navigation, str):
        folder = DOCS / navigation
        yield from (
            [page.relative_to(DOCS).as_posix() for page in folder.glob("*.md")]
            if navigation.endswith("/")
            else [navigation]
        )
    else:
        for below in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from entries(below)


LISTED = list(entries(CONFIGURATION["nav"]))


def test_the_navigation_has_its_sections_in_their_order() -> None:
    assert [title for section in CONFIGURATION["nav"] for title in section] == SECTIONS


def test_the_navigation_lists_every_page_once() -> None:
    pages = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert sorted(LISTED) == pages, "List each page of docs/ once in `nav` of .site/mkdocs.yml."


def test_links_and_anchors_are_checked_strictly() -> None:
    checks = {**CONFIGURATION["validation"]["nav"], **CONFIGURATION["validation"]["links"]}
    assert set(checks.values()) == {"warn"}
    assert {"omitted_files", "not_found", "anchors"} <= set(checks)
    (command,) = re.findall(r"/mkdocs (build .*)", (ROOT / "Makefile").read_text("utf-8"))
    assert "--strict" in command
    assert "--quiet" not in command, "--quiet drops the warnings that --strict counts"


def test_ci_builds_the_site() -> None:
    assert re.search(r"^ *make .*\bsite$", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_pages_use_no_syntax_that_the_forge_does_not_show(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"^(!!!|\?\?\?|===|:::) ", text, re.MULTILINE)

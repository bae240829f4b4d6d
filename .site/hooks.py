"""Beside MkDocs: the list of decisions, diagrams that are drawn at the build, and no network."""  # noqa: INP001

import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import mmdr
import yaml
from pymdownx.slugs import slugify
from pymdownx.superfences import SuperFencesException

log = logging.getLogger("mkdocs.hooks.streamfold")
FROM_A_NETWORK = re.compile(
    r'<(?:script|img|iframe|link rel="(?:stylesheet|preload|preconnect)")[^>]*(?:src|href)="(?:https?:)?//[^"]*'
)
WORDS: dict[str, list[str]] = yaml.safe_load((Path(__file__).parent / "words.yml").read_text("utf-8"))
BOOSTS = {"decisions/": 0.01, "changelog.md": 0.01, "reference/": 0.5}
"""A newcomer looks for a page that says how: decisions and releases come after all other pages that have the word."""
LINK = re.compile(r"\[([^]]+)\]\((\.\./[^)#]*)[^)]*\)")


def on_config(config: Any) -> Any:
    """Completes what a file of YAML cannot say."""
    config.nav = [_with_all_pages(section, Path(config.docs_dir)) for section in config.nav]
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")  # anchors as the forge names them
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [
        {"name": "mermaid", "class": "diagram", "format": draw}
    ]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Gives the search the words of newcomers; and a link to a file of the repository, which leads somewhere on the
    forge alone, becomes its text and its path.
    """
    path = page.file.src_uri
    page.meta["tags"] = WORDS.get(path, [])
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS.items() if path.startswith(start)), 1)}
    docs, folder = Path(config.docs_dir).resolve(), Path(page.file.abs_src_path).resolve().parent

    def shown(link: re.Match[str]) -> str:
        file = (folder / link[2]).resolve()
        if file.is_relative_to(docs):
            return link[0]
        path = file.relative_to(docs.parent).as_posix()
        return link[1] if path in link[1] else f"{link[1]} (`{path}`)"

    return LINK.sub(shown, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Under --strict a warning fails the build: a page that loads something is empty where there is no network."""
    if found := FROM_A_NETWORK.search(output):
        log.warning("%s loads %s from a network: put the file into .site/", page.file.src_path, found[0])
    return output


def draw(source: str, language: str, css_class: str, *_: Any, **__: Any) -> str:
    """An SVG in place of a block of Mermaid. Its style is scoped by its name, which is another one for each diagram."""
    try:
        svg = mmdr.render(source).svg()
    except ValueError as error:  # any other exception, SuperFences would log and print the source in its place
        raise SuperFencesException(f"no {language} that can be drawn: {error}\n{source}") from error
    name = f"{css_class}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return f'<div class="{css_class}">{svg.replace("merman", name)}</div>'


def _with_all_pages(entry: Any, folder: Path) -> Any:
    """The entry, with the pages of a folder in place of its name: ``decisions/`` has a new one every week."""
    if isinstance(entry, dict):
        return {title: _with_all_pages(below, folder) for title, below in entry.items()}
    if isinstance(entry, list):
        return [_with_all_pages(below, folder) for below in entry]
    if entry.endswith("/"):
        return [page.relative_to(folder).as_posix() for page in sorted((folder / entry).glob("*.md"))]
    return entry

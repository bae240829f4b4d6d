"""The frame of all pages: one self-contained HTML file with its data, its script and its style, without any request.

Keys, names, values and errors may hold markup. They are data in JSON, of which the script makes text nodes; the policy
of the page allows its own script and style by their digests, and no other, no request and no form.
"""

import os
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from streamfold.errors import SettingsError
from streamfold.records.values import to_json

OPTION = "--html"
"""The option that names the file of a page, for messages."""
SCRIPTS = ("frame.js", "graph.js", "report.js", "dashboard.js", "page.js")
"""The parts of the script, in their order. They share one scope."""
SCRIPT = '"use strict";\n(() => {{\n{}\n}})();\n'
ASSETS = files("streamfold.pages") / "assets"
SAFE_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters of JSON that could end the element which holds it (HTML Standard, Restrictions for contents of script
elements). Each is a character of a JSON string, where its escape has the same meaning."""


def page(title: str, data: Mapping[str, Any]) -> str:
    """The page of ``data``: a graph where it has one, and the sections of a report."""
    style, script = _asset("page.css"), SCRIPT.format("\n".join(map(_asset, SCRIPTS)))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        policy=escape(policy),
        style=style,
        script=script,
        data=embedded(data),
    )


def embedded(data: Mapping[str, Any]) -> str:
    """Data as JSON that no text of it can end."""
    text = to_json(data)
    for letter, safe in SAFE_IN_SCRIPT.items():
        text = text.replace(letter, safe)
    return text


def check_file(file: Path, option: str = OPTION) -> None:
    """Raises ``SettingsError`` for a file that cannot be written, before the work whose page it is to hold."""
    target = file if file.exists() else file.parent
    if not target.exists() or not os.access(target, os.W_OK):
        why = "you may not write it" if target.exists() else f"there is no folder {target}"
        raise SettingsError(
            f"{option} {file} cannot be written: {why}. Name a file in a folder that exists and that you may write."
        )


def write_page(file: Path, text: str, option: str = OPTION) -> None:
    """Writes a page. Raises ``SettingsError`` where it cannot be written."""
    try:
        file.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as error:
        raise SettingsError(
            f"{option} {file} cannot be written: {error.strerror or error}. Name a file in a folder that exists and "
            "that you may write."
        ) from None


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

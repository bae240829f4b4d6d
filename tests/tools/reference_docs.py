"""Writes docs/reference/ from the docstrings of public names: ``python -m tests.tools.reference_docs``."""

import re
from pathlib import Path

import griffe

from streamfold.settings import NAMED, SECRETS, TEXTS, Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reference"
PACKAGE = "streamfold"
SIGNATURE_LENGTH_MAX = 100
"""A longer signature has a line for each parameter: pages are read at a width of 390 pixels too."""
MADE = "Made from docstrings; `python -m tests.tools.reference_docs` makes it anew."
SETTINGS_HEAD = """# Settings

Made from the settings' table; `python -m tests.tools.reference_docs` makes it anew.

A function reads its settings from variables of its environment, once. `streamfold settings` shows the values that hold,
and where they come from. Commands take most of them as options too; see [the command line](../cli.md).

| setting | default | meaning |
| --- | --- | --- |"""
MODULES = {
    "names.md": ("streamfold", "Names of `streamfold`"),
    "reading.md": ("streamfold.read", "Reading: `streamfold.read`"),
    "stores.md": ("streamfold.engines", "Stores: `streamfold.engines`"),
    "tests.md": ("streamfold.testing", "Tests: `streamfold.testing`"),
}
"""Pages of modules: the module, and the title."""
CALLED = {
    "App": ("process", "lambda_handler", "work_handler", "jobs_handler", "verify_handler"),
    "Key": ("key", "match", "query"),
    "Change": ("old", "new", "at", "changed", "has_old", "has_new", "has_at"),
    "TypedChange": ("old", "new"),
    "Now": ("passed", "between", "latest"),
    "Added": ("amounts",),
    "Ordered": ("show", "fold"),
}
"""Members that users call or read, of classes that have others for the framework."""
WITHOUT_MEMBERS = {
    "Average", "Collect", "Count", "Distinct", "DynamoEngine", "EmbeddedEngine", "Engine", "First", "Latest", "Max",
    "MemoryEngine", "Min", "Sum", "Table", "Top", "Version",
}  # fmt: skip
"""Classes that users make, and whose members only the framework calls."""


def pages() -> dict[str, str]:
    """Every page, by its file name."""
    package = griffe.load(PACKAGE, search_paths=[str(ROOT / "framework")], resolve_aliases=True)
    made = {name: _module(package, module, title) for name, (module, title) in MODULES.items()}
    return {**made, "errors.md": _errors(package), "settings.md": _settings()}


def _module(package: griffe.Object | griffe.Alias, path: str, title: str) -> str:
    module = package[path.removeprefix(PACKAGE).removeprefix(".")] if path != PACKAGE else package
    parts = [f"# {title}", MADE, _text(module)]
    names = [str(name) for name in module.exports or ()]
    parts.append("\n".join(["| name | |", "| --- | --- |", *(_line(name, module[name]) for name in names)]))
    for name in names:
        parts += _entry(name, module[name])
    return "\n\n".join(part for part in parts if part) + "\n"


def _line(name: str, found: griffe.Object | griffe.Alias) -> str:
    """A name in the table at the top: its summary, which is the first sentence of its docstring."""
    summary = re.split(r"(?<=[.:]) ", _text(found).split("\n\n")[0].replace("\n", " "))[0].rstrip(":")
    return f"| [{name}](#{name.lower()}) | {summary} |"


def _entry(name: str, found: griffe.Object | griffe.Alias) -> list[str]:
    """One public name with the members of a class that a user calls or reads."""
    parts = [f"## {name}", _code(_signature(found, name)), _text(found)]
    if not found.is_class:
        return parts
    for member, of_class in sorted(found.all_members.items(), key=lambda pair: pair[1].lineno or 0):
        if _is_shown(name, member, of_class):
            parts += [f"### {name}.{member}", _code(_signature(of_class, f"{name}.{member}")), _text(of_class)]
    return parts


def _is_shown(class_name: str, member: str, found: griffe.Object | griffe.Alias) -> bool:
    if class_name in CALLED:
        return member in CALLED[class_name]
    if class_name in WITHOUT_MEMBERS or member.startswith("_") or member == "marked":  # of every error
        return False
    return found.docstring is not None and PACKAGE in found.canonical_path


def _signature(found: griffe.Object | griffe.Alias, name: str) -> str:
    """How a name is called: one line, or a line for each parameter."""
    if found.is_attribute:
        annotation = found.annotation
        return f"{name}: {annotation}" if annotation else name
    parameters = [each for each in found.parameters if each.name not in ("self", "cls")]
    if found.is_class and not parameters:
        return f"class {name}"
    shown = list(_parameters(parameters))
    returns = f" -> {found.returns}" if found.is_function and found.returns is not None else ""
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= SIGNATURE_LENGTH_MAX:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){returns}"])


def _parameters(parameters: list[griffe.Parameter]) -> list[str]:
    shown: list[str] = []
    kinds = griffe.ParameterKind
    for index, each in enumerate(parameters):
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(each.kind, "") if each.kind else ""
        text = stars + each.name + (f": {each.annotation}" if each.annotation is not None else "")
        if each.default is not None and not stars:
            text += f" = {each.default}" if each.annotation is not None else f"={each.default}"
        before = parameters[index - 1].kind if index else None
        if each.kind is kinds.keyword_only and before not in (kinds.keyword_only, kinds.var_positional):
            shown.append("*")
        if before is kinds.positional_only and each.kind is not kinds.positional_only:
            shown.append("/")
        shown.append(text)
    return shown


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _text(found: griffe.Object | griffe.Alias) -> str:
    """A docstring as Markdown: its code, its literals, and links to the pages that it names."""
    text = found.docstring.value if found.docstring else ""
    blocks = []
    for block in text.split("\n\n"):
        if block.startswith("    "):
            blocks.append(_code(re.sub("^    ", "", block, flags=re.MULTILINE)))
        else:
            literal = re.sub(r"``(.+?)``", r"`\1`", block, flags=re.DOTALL)
            blocks.append(re.sub(r"`streamfold docs ([a-z-]+)`", r"[\1](../\1.md)", literal))
    return "\n\n".join(blocks)


def _errors(package: griffe.Object | griffe.Alias) -> str:
    module = package["errors"]
    introduction, tree = module.docstring.value.split("\n\n", 1)
    parts = ["# Errors: `streamfold.errors`", MADE, introduction, f"```text\n{tree}\n```"]
    for name in module.exports:
        parts += [f"## {name}", _text(module[str(name)])]
    return "\n\n".join(parts) + "\n"


def _settings() -> str:
    return "\n".join([SETTINGS_HEAD, *_setting_rows()]) + "\n"


def _setting_rows() -> list[str]:
    variables = {name: f"{prefix}<NAME>" for name, prefix in NAMED.items()}
    rows = []
    for name, meaning in TEXTS.items():
        default = Settings._field_defaults[name]
        shown = "" if default in (None, ()) or name in variables else "off" if default is False else default
        secret = " (never shown)" if name in SECRETS else ""
        rows.append(f"| `{variables.get(name, f'STREAMFOLD_{name.upper()}')}` | {shown} | {_told(meaning)}{secret} |")
    return rows


def _told(meaning: str) -> str:
    """A meaning with its names, addresses and forms as code, so that ``<NAME>`` is no markup."""
    return re.sub(r"(\S*[<:]\S*[^\s,;])", r"`\1`", meaning)


def main() -> None:
    """Writes the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()

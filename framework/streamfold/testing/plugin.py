"""The pytest plugin: the fixtures ``prove`` and ``twin``, their options, and the counts of all proofs at the end.

A run of ``prove`` that diverges is saved as a test below ``tests/regressions/``. The next time it is replayed first: by
``prove`` in its own test, and by pytest, which runs that folder before all others.
"""

import os
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from re import sub
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamfold.app import App
    from streamfold.testing import Diverged, Proof, Twin

PROOFS = pytest.StashKey[list[tuple[str, Any]]]()
REGRESSIONS = Path("tests", "regressions")
"""Below pytest's root folder: the runs that once diverged."""
DIGEST_LETTERS = 8
"""Distinguishes the saved runs of one test: 32 bits."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("streamfold")
    group.addoption("--streamfold-histories", type=int, metavar="N", help="histories of each proof by prove()")
    group.addoption("--streamfold-seed", type=int, metavar="S", help="seed of each proof by prove()")
    parser.addini(
        "streamfold_app", "the application of the fixture twin, MODULE:NAME (default: STREAMFOLD_APP, or handlers:app)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs that once diverged begin: if one still does, no long proof has to find it again."""
    folder = config.rootpath / REGRESSIONS
    items.sort(key=lambda item: folder not in item.path.parents)


@pytest.fixture
def twin(request: pytest.FixtureRequest) -> "Twin":
    """A new ``streamfold.testing.Twin`` of the application that ``streamfold_app`` or ``STREAMFOLD_APP`` names."""
    from streamfold.testing import Twin

    named = request.config.getini("streamfold_app") or os.environ.get("STREAMFOLD_APP") or "handlers:app"
    module, _, name = named.partition(":")
    try:
        app = getattr(import_module(module), name or "app")
    except (AttributeError, ModuleNotFoundError) as error:
        raise pytest.UsageError(
            f"The fixture twin found no application {named!r}: {error}. Expected MODULE:NAME in pyproject.toml, "
            '[tool.pytest.ini_options] streamfold_app = "my_shop:app", and pythonpath = ["."].'
        ) from error
    return Twin(app)


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> "Callable[..., Proof]":
    """``streamfold.testing.check`` with the options of the command line; its counts are printed at the end.

    ``prove(app, {ORDER: {"status": "placed"}}, histories=200)``: see ``check``. A run of this test that diverged before
    is replayed first.
    """
    from streamfold.testing import Diverged, check  # imports the prover, which other tests need not wait for

    options = {"histories": "--streamfold-histories", "seed": "--streamfold-seed"}
    given = {name: request.config.getoption(option) for name, option in options.items()}
    saved = SavedRuns(request.config.rootpath, sub(r"\W+", "_", request.node.name).strip("_"))

    def proven(app: "App", *arguments: Any, **more: Any) -> "Proof":
        saved.replay(app)
        try:
            proof = check(
                app, *arguments, **{**more, **{name: value for name, value in given.items() if value is not None}}
            )
        except Diverged as diverged:
            saved.save(app, diverged)
            raise
        request.config.stash.setdefault(PROOFS, []).append((request.node.nodeid, proof))
        return proof

    return proven


class SavedRuns:
    """The runs of one test that diverged, each a test file of its own."""

    def __init__(self, root: Path, test: str) -> None:
        self.root = root
        self.begin = test if test.startswith("test_") else f"test_{test}"

    def replay(self, app: "App") -> None:
        """Runs the saved scenarios of this application. Raises ``Diverged`` for one that still fails."""
        from streamfold.proofs.check import check_scenario
        from streamfold.proofs.processes import module_path_of

        if (path := module_path_of(app)) is None:
            return
        for file in sorted((self.root / REGRESSIONS).glob(f"{self.begin}_{'?' * DIGEST_LETTERS}.py")):
            text = file.read_text("utf-8")
            if f"from {path[0]} import {path[1]}\n" in text:
                names: dict[str, Any] = {"__name__": file.stem}
                exec(compile(text, str(file), "exec"), names)  # noqa: S102 - a test of this project
                check_scenario(app, names["SCENARIO"])

    def save(self, app: "App", diverged: "Diverged") -> None:
        """Saves the scenario, unless it is saved or another process could not import the application."""
        from streamfold.proofs.check import source_of
        from streamfold.proofs.processes import module_path_of

        if (path := module_path_of(app)) is None:
            diverged.add_note("Not saved: no module has the application under a name that a saved test could import.")
            return
        text = source_of(diverged.scenario, ":".join(path))
        file = REGRESSIONS / f"{self.begin}_{sha256(text.encode()).hexdigest()[:DIGEST_LETTERS]}.py"
        (self.root / REGRESSIONS).mkdir(parents=True, exist_ok=True)
        (self.root / file).write_text(text, "utf-8")
        diverged.add_note(f"Saved as {file.as_posix()}, which is replayed first from now on: commit it with the fix.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, proof in config.stash.get(PROOFS, []):
        terminalreporter.write_line(f"{name}: {proof.summary}")

"""The pytest plugin: the fixture ``prove``, its options, and the counts of all proofs at the end of the run."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamfold.app import App
    from streamfold.testing import Proof

PROOFS = pytest.StashKey[list[tuple[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("streamfold")
    group.addoption("--streamfold-histories", type=int, metavar="N", help="histories of each proof by prove()")
    group.addoption("--streamfold-seed", type=int, metavar="S", help="seed of each proof by prove()")


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> "Callable[..., Proof]":
    """``streamfold.testing.check`` with the options of the command line; its counts are printed at the end.

    ``prove(app, {ORDER: {"status": "placed"}}, histories=200)``: see ``check``.
    """
    from streamfold.testing import check  # imports the prover, which other tests need not wait for

    options = {"histories": "--streamfold-histories", "seed": "--streamfold-seed"}
    given = {name: request.config.getoption(option) for name, option in options.items()}

    def proven(app: "App", *arguments: Any, **more: Any) -> "Proof":
        proof = check(
            app, *arguments, **{**more, **{name: value for name, value in given.items() if value is not None}}
        )
        request.config.stash.setdefault(PROOFS, []).append((request.node.nodeid, proof))
        return proof

    return proven


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, proof in config.stash.get(PROOFS, []):
        terminalreporter.write_line(f"{name}: {proof.summary}")

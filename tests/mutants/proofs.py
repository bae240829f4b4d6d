"""Mutants of what a user's proof notices and says."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from streamfold.proofs import coverage, memory
from streamfold.proofs.handlers import ProofParking
from streamfold.proofs.invariants import Invariants
from streamfold.proofs.memory import Remembered
from streamfold.proofs.processes import Elsewhere
from streamfold.settings import Settings
from tests.mutants.registry import mutant

ELSEWHERE = "tests/proofs/test_processes.py::"
EXAMPLES = "tests/proofs/test_examples.py::"
CHECK = "tests/proofs/test_check.py::"


@mutant(
    "items on which a handler raises are left out unseen",
    None,
    tests=(
        EXAMPLES + "test_an_example_on_which_a_handler_raises_fails_the_proof_with_the_example_and_the_line",
        EXAMPLES + "test_what_a_handler_yields_is_looked_at_as_production_does",
    ),
)
def _() -> Iterator[None]:
    with patch.object(coverage, "_refusal", lambda *_: ""):
        yield


@mutant(
    "handlers are called in one process alone",
    None,
    tests=ELSEWHERE + "test_handler_that_goes_by_hashes_of_text_is_named_as_such",
)
def _() -> Iterator[None]:
    with patch.object(Elsewhere, "compare", lambda _: ()):
        yield


@mutant(
    "handlers keep what they remember",
    None,
    tests=CHECK + "test_handler_that_gives_the_same_again_because_it_remembers_is_named_as_such",
)
def _() -> Iterator[None]:
    @contextmanager
    def kept(_: Any) -> Iterator[bool]:
        yield False

    with patch.object(Remembered, "forgotten", kept):
        yield


@mutant(
    "names that are bound anew are no memory",
    None,
    tests=CHECK + "test_handler_that_remembers_in_whatever_place_is_named_as_such",
)
def _() -> Iterator[None]:
    with patch.object(memory, "PLAIN", ()):
        yield


@mutant(
    "a recording's tables are called as they are declared",
    None,
    tests=CHECK + "test_recorded_tables_are_called_what_the_environment_says",
)
def _() -> Iterator[None]:
    with patch.object(Settings, "from_environment", lambda _: Settings()):
        yield


@mutant(
    "what never happened in a proof is not said",
    None,
    tests="tests/proofs/test_coverage.py::test_histories_without_a_change_or_a_removal_are_said_to_be_so",
)
def _() -> Iterator[None]:
    with patch.dict(coverage.EVENTS, clear=True):
        yield


@mutant(
    "a record that was put aside is never redriven",
    None,
    tests="tests/proofs/test_handlers.py::test_handlers_that_are_switched_off_for_a_while_end_with_the_right_rows",
)
def _() -> Iterator[None]:
    with patch.object(ProofParking, "park", lambda *_: None):
        yield


@mutant(
    "a version may fall though no row refuses the step",
    None,
    tests="tests/commit/test_taking_back.py::"
    "test_the_proof_notices_a_version_that_falls_without_its_delta_or_to_another_version",
)
def _() -> Iterator[None]:
    with patch.object(Invariants, "_is_taken_back", lambda *_: True):
        yield

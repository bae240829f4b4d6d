"""Mutants of what users meet: numbers, ties, messages and the command line."""

from collections.abc import Iterator
from decimal import Context
from unittest.mock import patch

from streamfold import entries, part, recorded, rounding, signature
from streamfold.route import Route
from tests.mutants.registry import mutant


@mutant(
    "keys are compared with what follows their parts",
    None,
    tests="tests/test_unique.py::test_the_smallest_key_is_that_whose_parts_come_first",
)
def _() -> Iterator[None]:
    with patch.object(entries, "BETWEEN", "|"):
        yield


@mutant(
    "a parameter with a default is a field too",
    None,
    tests="tests/test_signature.py::test_a_parameter_with_a_default_that_is_no_field_is_the_functions_own",
)
def _() -> Iterator[None]:
    with patch.object(signature, "_is_own", lambda *_: False):
        yield


@mutant(
    "a quotient is rounded as a handler's context says",
    None,
    tests="tests/test_rounding.py::test_a_quotient_is_rounded_once",
)
def _() -> Iterator[None]:
    with patch.object(rounding, "LONG", Context(prec=6)):
        yield


@mutant(
    "every refused number is one of too many digits",
    None,
    tests="tests/test_rounding.py::test_arithmetic_that_is_refused_is_told_with_what_to_do",
)
def _() -> Iterator[None]:
    with patch.object(part, "inexact_text", lambda _: "computed a number that 38 digits cannot hold exactly."):
        yield


@mutant(
    "what a source's key lacks is asked for all the same",
    None,
    tests="tests/test_process.py::test_items_without_a_value_in_a_fields_place_have_a_key_of_their_own",
)
def _() -> Iterator[None]:
    with patch.object(Route, "asked", lambda self, fields: {name: fields[name] for name in self.wants}):
        yield


@mutant(
    "the key of a history's item is text",
    None,
    tests="tests/test_read.py::test_the_key_of_an_item_is_read_from_the_row_of_its_history",
)
def _() -> Iterator[None]:
    with patch.object(recorded, "READERS", {"S": str, "N": str, "B": str}):
        yield

"""Mutants of aggregates: what the state remembers of one's own, how it is computed, and what shards make together."""

from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import patch

from streamfold.ledger import schema
from streamfold.read import derived_rows
from streamfold.routes import aggregates
from streamfold.routes.aggregates import AGGREGATIONS, Ordered, ordering_of
from tests.mutants.registry import mutant

OWN = "tests/derivations/view/test_own_aggregates.py::"
LAWS = "tests/routes/test_shipped_aggregates.py::"


@mutant(
    "an aggregate of one's own is remembered as any other that orders",
    None,
    tests=(
        OWN + "test_the_state_remembers_it_by_its_own_name",
        OWN + "test_a_new_process_refuses_another_form_than_what_is_stored",
    ),
)
def _() -> Iterator[None]:
    with patch.object(schema, "OWN", "\0"):
        yield


@mutant(
    "a class takes the stored name of another",
    None,
    tests=OWN + "test_a_class_whose_rows_could_be_taken_for_others_is_refused_where_it_is_written",
)
def _() -> Iterator[None]:
    known = dict(AGGREGATIONS)
    with patch.object(aggregates, "_identity", lambda _: ""):
        yield
    AGGREGATIONS.update(known)
    ordering_of.cache_clear()


@mutant(
    "an aggregate of one's own is computed as its thread rounds",
    None,
    tests=OWN + "test_what_a_class_computes_is_exact_in_whatever_thread",
)
def _() -> Iterator[None]:
    with patch.object(aggregates, "localcontext", lambda _: nullcontext()):
        yield


@mutant(
    "values of shards come one shard after the other",
    None,
    tests=LAWS + "test_shards_make_together_what_is_folded_however_sources_are_spread",
)
def _() -> Iterator[None]:
    with patch.object(derived_rows, "in_order", lambda _, placed: list(placed)):
        yield


@mutant(
    "an aggregate whose shards cannot be merged has shards all the same",
    None,
    tests=OWN + "test_shards_of_one_that_cannot_be_merged_are_refused_at_import_with_its_line_and_the_remedy",
)
def _() -> Iterator[None]:
    with patch("streamfold.derivations.view.shards.Ordered", type("Another", (Ordered,), {})):
        yield

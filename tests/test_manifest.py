"""What a state knows of its application: handlers that vanished or changed are refused with the remedy."""

import json
import re

import pytest

from streamfold import App, Key, Router
from streamfold.errors import ManifestError
from streamfold.ledger import manifest_key
from streamfold.manifest import ROUNDS_MAX, check_manifest

SOURCE, OTHER, DRAFT = Key("A#{a}", "X"), Key("B#{b}", "X"), Key("DRAFT#{a}", "X")
TOTAL, SECOND, OWN = Key("TOTAL", "X"), Key("SECOND", "X"), Key("OWN#{a}", "Y")


def nothing(subject):
    yield from ()


class State:
    """The one item of a state table; ``busy`` times somebody else is faster."""

    def __init__(self, busy=0):
        self.items, self.busy, self.swaps = {}, busy, 0

    def read_state(self, keys):
        return {key: dict(self.items[key]) for key in keys if key in self.items}

    def swap_state(self, key, attributes, revision):
        self.swaps += 1
        if self.busy:
            self.busy -= 1
            return False
        assert self.items.get(key, {}).get("r", 0) == revision
        self.items[key] = {**attributes, "r": revision + 1}
        return True

    @property
    def handlers(self):
        return json.loads(self.items[manifest_key("shop")]["handlers"])

    @property
    def tables(self):
        return json.loads(self.items[manifest_key("shop")]["tables"])


def app(*sources, name="total", kind="view", retired=(), more=(), **options):
    router = Router()
    getattr(router, kind)(*(sources or (SOURCE,)), name=name, **{"into": TOTAL, **options})(nothing)
    return App("shop", routers=[router, *more], retired=retired)


def check(application, state, **options):
    check_manifest(application.name, application.routes, application.retired, state, **options)


def state_of(application):
    state = State()
    check(application, state)
    return state


def test_a_new_state_learns_every_handler():
    assert state_of(app()).handlers == {
        "total": {
            "kind": "view",
            "group": "main",
            "sources": ["main: A#{a} / X"],
            "targets": ["main: TOTAL / X"],
            "contested": [],
        }
    }


def test_the_same_application_writes_nothing_again():
    state = state_of(app())
    check(app(), state)
    assert state.swaps == 1


def test_a_handler_more_is_added():
    more = Router()
    more.audit(OTHER)
    state = state_of(app())
    check(app(more=[more]), state)
    assert set(state.handlers) == {"total", "audit"}


def test_without_write_the_application_is_compared_only():
    state = State()
    check(app(), state, write=False)
    assert state.swaps == 0


def test_a_renamed_handler_is_refused_with_the_remedy():
    with pytest.raises(ManifestError) as caught:
        check(app(name="totals"), state_of(app()))
    assert str(caught.value) == (
        "Handler 'total' (view into main: TOTAL / X) is known to the state, but the application has it no more. "
        'Was it renamed? Then keep its identity: name="total". Is it given up? Then App(..., retired=["total"]); '
        "its rows stay as they are. For a local state, --fresh starts anew."
    )


def test_a_retired_handler_is_forgotten():
    state = state_of(app())
    check(app(name="totals", retired=["total"]), state)
    assert set(state.handlers) == {"totals"}


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ({}, {"kind": "index", "into": OWN}, "its kind from 'view' to 'index'"),
        ({}, {"function": "slow"}, "its group from 'main' to 'slow'"),
        ({"into": [TOTAL, SECOND]}, {}, "its targets from 'main: TOTAL / X, main: SECOND / X' to 'main: TOTAL / X'"),
        ({}, {"into": SECOND}, "its targets from 'main: TOTAL / X' to 'main: SECOND / X'"),
    ],
)
def test_a_handler_that_changed_its_meaning_is_refused_with_both(before, now, what):
    with pytest.raises(ManifestError) as caught:
        check(app(**now), state_of(app(**before)))
    assert f"Handler 'total' changed {what}: what it wrote before would be counted twice or left" in str(caught.value)
    assert 'Give the changed handler a new name, name="total_2", and retire the old one' in str(caught.value)


def test_a_handler_that_lost_a_source_is_refused():
    message = "changed its sources from 'main: A#{a} / X, main: B#{b} / X' to 'main: A#{a} / X'"
    with pytest.raises(ManifestError, match=re.escape(message)):
        check(app(SOURCE), state_of(app(SOURCE, OTHER)))


def test_a_handler_may_gain_a_source_or_a_target():
    state = state_of(app())
    check(app(SOURCE, OTHER, into=[TOTAL, SECOND]), state)
    assert state.handlers["total"]["sources"] == ["main: A#{a} / X", "main: B#{b} / X"]


def test_a_handler_whose_rows_would_need_an_owner_that_they_do_not_bear_is_refused():
    state = state_of(app(SOURCE, kind="index", into=OWN))
    with pytest.raises(ManifestError, match="its rows from 'rows that one source could make' to 'rows that several"):
        check(app(SOURCE, DRAFT, kind="index", into=OWN), state)


def test_an_external_handler_is_of_a_kind_of_its_own():
    router = Router()
    router.on(SOURCE, external=True, name="total")(lambda change: None)
    with pytest.raises(ManifestError, match="changed its kind from 'on' to 'external'"):
        check(App("shop", routers=[router]), state_of(app(kind="on")))


def test_another_s_write_in_between_is_taken_into_account():
    state = State(busy=2)
    check(app(), state)
    assert state.swaps == 3


def test_a_manifest_that_others_write_all_the_time_is_given_up():
    state = State(busy=ROUNDS_MAX)
    with pytest.raises(ManifestError, match=f"The manifest of 'shop' could not be written in {ROUNDS_MAX} tries"):
        check(app(), state)


def state_read_from(source, epoch=0):
    state = State()
    check(app(), state, sources={"main": source}, epoch=epoch)
    return state


def test_the_source_kind_of_a_table_is_learnt_from_its_first_records():
    state = state_of(app())
    assert state.tables == {}
    check(app(), state, sources={"main": "kinesis"})
    check(app(), state, sources={"main": "kinesis"})
    assert state.tables == {"main": {"source": "kinesis", "epoch": 0}}
    assert state.swaps == 2


def test_a_further_table_is_added_beside_the_first():
    state = state_read_from("stream")
    check(app(), state, sources={"archive": "kinesis"})
    assert state.tables == {
        "main": {"source": "stream", "epoch": 0},
        "archive": {"source": "kinesis", "epoch": 0},
    }


@pytest.mark.parametrize(("before", "now"), [("stream", "kinesis"), ("kinesis", "stream")])
def test_another_source_of_a_table_is_refused_with_the_remedy(before, now):
    state = state_read_from(before, epoch=3)
    with pytest.raises(ManifestError) as caught:
        check(app(), state, sources={"main": now}, epoch=3)
    words = {"stream": "its DynamoDB stream", "kinesis": "Kinesis"}
    assert str(caught.value) == (
        f"The state knows table 'main' through {words[before]}, and now its records come from {words[now]}: versions "
        "of the two do not compare. To change over for good, let the old source run dry, then raise STREAMFOLD_EPOCH "
        "to 4: every version is then newer than those of the old source. For a local state, --fresh starts anew."
    )


def test_a_higher_epoch_changes_the_source_and_the_way_back_needs_one_more():
    state = state_read_from("stream")
    check(app(), state, sources={"main": "kinesis"}, epoch=1)
    assert state.tables == {"main": {"source": "kinesis", "epoch": 1}}
    with pytest.raises(ManifestError, match="raise STREAMFOLD_EPOCH to 2"):
        check(app(), state, sources={"main": "stream"}, epoch=1)


def test_the_epoch_that_counts_is_the_highest_that_was_used():
    state = state_read_from("stream")
    for epoch in (2, 1):
        check(app(), state, sources={"main": "stream"}, epoch=epoch)
    with pytest.raises(ManifestError, match="raise STREAMFOLD_EPOCH to 3"):
        check(app(), state, sources={"main": "kinesis"}, epoch=2)

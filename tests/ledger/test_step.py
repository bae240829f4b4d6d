"""The ledger: keys that are never another's, and steps that lead the rows from what is stored to what is due."""

from dataclasses import replace
from decimal import Decimal, localcontext
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfold import Count, Key, Max, Router, Row, Sum, Version
from streamfold.batch.already_applied import ContributionNames, applied_texts
from streamfold.engines.keys import key_too_long
from streamfold.ledger.contribution import (
    BEFORE_ALL,
    CONTRIBUTION_BYTES_MAX,
    NO_ROW_CONTRIBUTION,
    LedgerItem,
    StoredContribution,
    elsewhere,
    kept_text,
    pending_rows,
    stored_rows,
    stored_text,
)
from streamfold.ledger.difference import difference
from streamfold.ledger.state_keys import (
    claim_key,
    contribution_key,
    document_key,
    event_key,
    ledger_key,
    manifest_key,
    source_key,
)
from streamfold.ledger.step import PAGE_ROWS, Step, Tally, optimistic, reconciled, replanned
from streamfold.routes.checks import checked_routes
from streamfold.writes.guarded import (
    AddRow,
    DeleteRow,
    DeleteState,
    HandlerContribution,
    LedgerWrite,
    PutRow,
    PutState,
    StateKey,
)
from tests.helpers.contributions import contribution
from tests.helpers.records import LABEL, image, item

SOURCE = Key("A#{a}", "B")
GROUP = Key("GROUP#{group}", "TOTAL")
OWNED = Key("OWNED#{a}", "{n}")
ITEM = ("main", "A#1", "B")
KEY = StateKey("ledger#shop#main#main#S#A#1", "S#B")
V1, V2, V3 = (Version.of(0, LABEL, number).text for number in (1, 2, 3))


def made(*names):
    """Routes of views over two targets: rows that they share, and rows of their own."""
    router = Router()
    for name in names:
        router.view(SOURCE, into=[GROUP, Key(f"{name}#{{a}}", "{n}")], name=name)(yields())
    return checked_routes(router.routes)


def yields(*rows):
    def handler(item):
        yield from rows

    return handler


(VIEW,) = made("OWNED")


def contributed(*rows):
    """What these rows are as a contribution."""
    return contribution(replace(VIEW, function=yields(*rows)), image(item("A#1", "B")), {"a": "1"})


# Keys.

texts = st.text("aS#-H|/0", max_size=5) | st.sampled_from(["a" * 2100, "b" * 2100, "é" * 600, "#" * 2100])
key_values = texts | st.binary(max_size=3) | st.integers(-3, 3)
items = st.tuples(st.sampled_from(["main", "main2"]), key_values, st.none() | key_values)
names = st.sampled_from(["a", "b", "a.b", "a-b"])
versions = st.builds(lambda sequence: Version.of(0, LABEL, sequence).text, st.integers(0, 3))


def sized(key):
    """The key, whose parts DynamoDB takes."""
    assert len(key.pk.encode()) <= 2048
    assert len(key.sk.encode()) <= 1024
    return key


LONGEST = "x" * 64
TIME_MAX = "9" * 40
VERSIONS_MAX = (V1[:-40] + TIME_MAX, f"00/kinesis/{TIME_MAX}/{'f' * 32}")


@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f600"])
@pytest.mark.parametrize("sort_bytes", [900, 912, 924, 925, 926, 928, 1024])
@pytest.mark.parametrize("version", VERSIONS_MAX)
def test_every_key_fits_however_long_item_and_names_are(letter, sort_bytes, version):
    letter_bytes = len(letter.encode())
    item = (LONGEST, letter * (2048 // letter_bytes), letter * (sort_bytes // letter_bytes))
    ledger, of_change = ledger_key(LONGEST, LONGEST, item), (LONGEST, LONGEST, item, version)
    keys = [ledger, contribution_key(ledger, LONGEST), source_key(LONGEST, item), document_key(LONGEST, LONGEST, item)]
    keys += [event_key(what, *of_change) for what in ("claim", "external", "attempt", "cascade")]
    assert list(map(key_too_long, keys)) == [None] * len(keys)


@given(*[st.tuples(names, names, items)] * 2)
def test_two_items_or_groups_never_share_a_ledger_item(one, other):
    assert (one == other) == (sized(ledger_key(*one)) == sized(ledger_key(*other)))


@pytest.mark.parametrize("key_of", [claim_key, partial(event_key, "external")])
@given(*[st.tuples(names, names, items, versions)] * 2)
def test_two_changes_or_handlers_never_share_a_claim(key_of, one, other):
    assert (one == other) == (sized(key_of(*one)) == sized(key_of(*other)))


@given(*[st.tuples(st.tuples(names, names, items), names)] * 2)
def test_two_handlers_or_items_never_share_a_large_contribution(one, other):
    first, second = (sized(contribution_key(ledger_key(*parts), handler)) for parts, handler in (one, other))
    assert (one == other) == (first == second)


@given(names, names, items, versions)
def test_the_kinds_of_state_items_never_meet(application, name, item, version):
    ledger = ledger_key(application, name, item)
    others = [key_of(application, name, item, version) for key_of in (claim_key, partial(event_key, "external"))]
    assert len({ledger, contribution_key(ledger, name), manifest_key(application), *others}) == 5


@pytest.mark.parametrize("number", [100, Decimal("1E+2"), Decimal("100.0")])
def test_a_number_key_has_one_ledger_item_however_it_is_spelled(number):
    assert ledger_key("shop", "main", ("raw", number, None)).pk == "ledger#shop#main#raw#N#100"


def test_a_key_is_written_out_as_long_as_it_fits():
    fitting = ledger_key("shop", "main", ("main", "p" * 1500, "s" * 926))
    assert fitting == ("ledger#shop#main#main#S#" + "p" * 1500, "S#" + "s" * 926)
    longest = 2048 - len("ledger#shop#main#main#S#")
    assert ledger_key("shop", "main", ("main", "p" * longest, None)).pk.endswith("p")
    assert ledger_key("shop", "main", ("main", "p" * (longest + 1), None)).pk.startswith("ledger#shop#main#main#H#")
    assert ledger_key("shop", "main", ("main", "p", "s" * 927)).sk.startswith("H#")


def test_the_documents_of_an_item_have_one_key_for_each_handler():
    assert document_key("shop", "orders", ITEM) == StateKey("document#shop#orders#main#S#A#1", "S#B")
    assert document_key("shop", "orders", ("main", "A#1", None)) == StateKey("document#shop#orders#main#S#A#1", "-")


def test_the_manifest_has_one_key_for_an_application():
    assert manifest_key("shop") == StateKey("manifest#shop", "-")


# Ledger items.


def test_a_ledger_item_is_read_with_the_parts_of_all_handlers():
    attributes = {"r": 3, "live": 1, "ttl": 9, "a.v": V1, "a.s": "[]", "a.b.v": V2, "a.b.s": "", "a.fence": True}
    assert LedgerItem(3, 1, {"a": StoredContribution(V1, "[]"), "a.b": StoredContribution(V2, "")}) == LedgerItem.of(
        attributes
    )


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_ledger_item_is_read_as_revision_0(nothing):
    assert LedgerItem(0, 0, {}) == LedgerItem.of(nothing)


def test_an_item_that_was_paged_but_never_counted_is_read_with_zeros():
    assert LedgerItem.of({"a.v": ""}) == LedgerItem(0, 0, {"a": StoredContribution("", "")})


def test_a_contribution_is_kept_elsewhere_when_it_is_larger_than_4_kb():
    fits, large = "x" * CONTRIBUTION_BYTES_MAX, "é" * (CONTRIBUTION_BYTES_MAX // 2 + 1)
    assert fits == kept_text(fits)
    assert not elsewhere(StoredContribution(V1, kept_text(fits)))
    assert elsewhere(StoredContribution(V1, kept_text(large)))
    assert kept_text(large) != kept_text("è" + large[1:])
    assert not elsewhere(None)


stored_parts = st.fixed_dictionaries(
    {"v": st.sampled_from("123"), "s": st.sampled_from(["", "[]"])}, optional={"u": st.sampled_from(["", "left"])}
)


@given(
    st.dictionaries(st.sampled_from("abc"), stored_parts),
    st.lists(st.sampled_from("abc"), min_size=1, unique=True),
    st.sampled_from(["live", "ttl"]),
)
@example({"a": {"v": "1", "s": ""}, "b": {"v": "3", "s": ""}}, ["a", "b"], "live")
def test_an_item_is_applied_if_all_handlers_have_the_version_and_no_work_is_pending(parts, handlers, kept):
    stored = {f"{handler}.{name}": text for handler, part in parts.items() for name, text in part.items()}
    found = applied_texts({**stored, "r": 1, kept: 2}, ContributionNames(handlers), "2")
    seen = all(handler in parts and parts[handler]["v"] >= "2" for handler in handlers)
    left = any(part.get("u") for part in parts.values())
    assert found == (tuple(parts[handler]["s"] for handler in handlers) if seen and not left else None)


# The optimistic step.

FIVE, SEVEN = contributed(Row(GROUP, group="x", n=Sum(5))), contributed(Row(GROUP, group="y", n=Sum(7)))


def test_the_optimistic_step_expects_what_the_old_image_contributed():
    found = optimistic(KEY, ITEM, (Step(VIEW, V1, FIVE, SEVEN),))
    [part] = found.guard.contributions
    assert part == HandlerContribution("OWNED", V1, stored_text(SEVEN), stored_text(FIVE), part.pending)
    assert pending_rows(part.pending) == dict.fromkeys(FIVE, NO_ROW_CONTRIBUTION)
    assert LedgerWrite(KEY, (part,), revision=None, live=0, expires=False) == found.guard
    assert not found.partial
    assert tuple(difference("shop", VIEW, ITEM, FIVE, SEVEN)) == found.effects


def test_an_unchanged_contribution_still_moves_the_version_on():
    found = optimistic(KEY, ITEM, (Step(VIEW, V2, FIVE, FIVE),))
    assert found.effects == ()
    assert found.guard.contributions[0].version == V2


@pytest.mark.parametrize(
    ("before", "after", "live", "expires", "expected"),
    [({}, FIVE, 1, False, None), (FIVE, {}, -1, True, 1), ({}, {}, 0, True, 0), (FIVE, SEVEN, 0, False, None)],
)
def test_live_counts_what_is_stored_and_an_empty_item_may_expire(before, after, live, expires, expected):
    guard = optimistic(KEY, ITEM, (Step(VIEW, V1, before, after),)).guard
    assert (live, expires, expected) == (guard.live, guard.expires, guard.live_expected)


def test_one_handler_of_several_with_something_left_keeps_the_item():
    one, two = made("ONE", "TWO")
    guard = optimistic(KEY, ITEM, (Step(one, V1, FIVE, {}), Step(two, V1, FIVE, SEVEN))).guard
    assert (guard.live, guard.expires, guard.live_expected) == (-1, False, None)
    assert [part.handler for part in guard.contributions] == ["ONE", "TWO"]


def test_what_each_handler_writes_and_removes_is_tallied():
    rows = contributed(Row(GROUP, group="x", n=Count()), Row(VIEW.into[1], n="1", x=1))
    assert (Tally("OWNED", 1, 1),) == optimistic(KEY, ITEM, (Step(VIEW, V1, rows, {}),)).tallies


LARGE = contributed(*[Row(GROUP, group=f"{number:03d}" + "x" * 60, n=Count()) for number in range(60)])


def test_a_large_contribution_is_put_beside_and_deleted_when_it_shrinks():
    place = contribution_key(KEY, "OWNED")
    grown = optimistic(KEY, ITEM, (Step(VIEW, V1, FIVE, LARGE),))
    assert PutState(place, stored_text(LARGE)) in grown.effects
    assert kept_text(stored_text(LARGE)) == grown.guard.contributions[0].contribution
    shrunk = optimistic(KEY, ITEM, (Step(VIEW, V1, LARGE, FIVE),))
    assert DeleteState(place) in shrunk.effects


# The step from what is found.


def holding(version, rows, revision=4):
    return LedgerItem(revision, int(bool(rows)), {"OWNED": StoredContribution(version, stored_text(rows))})


@pytest.mark.parametrize("stored", [V2, V3])
def test_a_step_that_the_ledger_already_has_is_done(stored):
    assert replanned(KEY, ITEM, (Step(VIEW, V2, FIVE, SEVEN),), holding(stored, SEVEN)) is None


def test_a_step_is_planned_from_what_is_stored_on_the_revision_that_was_read():
    found = replanned(KEY, ITEM, (Step(VIEW, V2, {}, SEVEN),), holding(V1, FIVE))
    assert found.guard.revision == 4
    assert tuple(difference("shop", VIEW, ITEM, FIVE, SEVEN)) == found.effects
    assert (found.guard.live, found.guard.expires) == (0, False)


def test_a_step_without_a_ledger_item_starts_from_nothing():
    found = replanned(KEY, ITEM, (Step(VIEW, V2, FIVE, SEVEN),), LedgerItem.of(None))
    assert found.guard.revision == 0
    assert tuple(difference("shop", VIEW, ITEM, {}, SEVEN)) == found.effects


def test_only_the_handlers_that_are_not_done_are_planned_again():
    one, two = made("ONE", "TWO")
    stored = LedgerItem(4, 2, {"ONE": StoredContribution(V2, "[]"), "TWO": StoredContribution(V1, stored_text(FIVE))})
    found = replanned(KEY, ITEM, (Step(one, V2, FIVE, {}), Step(two, V2, FIVE, {})), stored)
    assert [step.route.name for step in found.steps] == ["TWO"]
    assert (found.guard.live, found.guard.expires) == (-1, False)


def test_the_last_handler_with_something_stored_lets_the_item_expire():
    found = replanned(KEY, ITEM, (Step(VIEW, V2, FIVE, {}),), holding(V1, FIVE))
    assert (found.guard.live, found.guard.expires, found.guard.live_expected) == (-1, True, None)


# Both steps from one ledger.

yielded = st.dictionaries(
    st.sampled_from("xyz"), st.tuples(st.integers(-5, 5), st.integers(-5, 5), st.booleans()), max_size=3
)


def of_each_form(rows):
    """Sums, and of some rows a maximum beside, which has entries."""
    return contributed(
        *[
            Row(GROUP, group=group, n=Sum(n), **({"best": Max(best)} if is_ordered else {}))
            for group, (n, best, is_ordered) in rows.items()
        ],
    )


def unstamped(writes):
    """Writes in an order of their own, without the stamps, which tell what a step expected."""
    return sorted(repr(write._replace(stamp="")) if isinstance(write, AddRow) else repr(write) for write in writes)


@given(*[st.one_of(yielded.map(of_each_form), st.just(LARGE))] * 2, st.booleans())
def test_an_optimistic_step_is_the_one_that_is_planned_from_the_ledger_that_it_assumes(before, after, stays):
    with localcontext(prec=38):
        steps = (Step(VIEW, V2, before, after, stays),)
        assumed, read = optimistic(KEY, ITEM, steps), replanned(KEY, ITEM, steps, holding(V1, before))
    assert unstamped(assumed.effects) == unstamped(read.effects)
    assert (assumed.steps, assumed.tallies, assumed.partial) == (read.steps, read.tallies, read.partial)
    assert (assumed.guard.live, assumed.guard.expires) == (read.guard.live, read.guard.expires)
    one, other = assumed.guard.contributions[0], read.guard.contributions[0]
    assert (one.version, one.contribution) == (other.version, other.contribution)
    assert (one.pending is None) == (other.pending is None)
    assert pending_rows(one.pending or "") == pending_rows(other.pending or "")


# A small model: what the ledger stores and the rows that follow are moved on by transitions alone.

groups = st.sampled_from("xyz")
amounts = st.integers(-5, 5) | st.decimals(-5, 5, places=1)
some_rows = st.lists(
    st.builds(lambda group, n: Row(GROUP, group=group, n=Sum(n)), groups, amounts)
    | st.builds(lambda n, x: Row(VIEW.into[1], n=n, x=x), st.sampled_from("12"), st.just("same")),
    max_size=4,
)


def applied(rows, writes):
    """The rows after writes, as the simplest store would have them."""
    rows = dict(rows)
    for write in writes:
        if isinstance(write, PutRow):
            rows[write.key] = dict(write.attributes)
        elif isinstance(write, DeleteRow):
            del rows[write.key]
        elif isinstance(write, AddRow):
            row = {name: value for name, value in rows.pop(write.key, {}).items() if name not in write.removed}
            row |= write.values
            added = {**write.amounts, "_sf_n": write.contributors}
            rows[write.key] = {**row, **{name: row.get(name, 0) + amount for name, amount in added.items()}}
    return {key: {name: value for name, value in row.items() if value} for key, row in rows.items() if row["_sf_n"]}


@given(some_rows, some_rows, some_rows)
def test_from_whatever_is_stored_a_step_leads_the_rows_to_what_is_due(stored, assumed, due):
    with localcontext(prec=38):
        stored, assumed, due = (contributed(*rows) for rows in (stored, assumed, due))
    rows = applied({}, difference("shop", VIEW, ITEM, {}, stored))
    found = replanned(KEY, ITEM, (Step(VIEW, V2, assumed, due),), holding(V1, stored))
    assert applied({}, difference("shop", VIEW, ITEM, {}, due)) == applied(rows, found.effects)
    assert due.keys() == stored_rows(found.guard.contributions[0].contribution).keys()


def test_a_step_with_more_rows_than_fit_goes_page_by_page_and_its_version_last():
    before, after = (contributed(*[Row(GROUP, group=f"{name}{n}", n=Count()) for n in range(99)]) for name in "ab")
    rows, stored, pages = applied({}, difference("shop", VIEW, ITEM, {}, before)), holding(V1, before), []
    while (found := replanned(KEY, ITEM, (Step(VIEW, V2, None, after),), stored)) is not None:
        assert len(found.effects) + 1 <= 100
        pages.append((found.partial, found.guard.contributions[0].version))
        rows, stored = applied(rows, found.effects), stored_after(stored, found)
    assert pages == [(True, V1), (True, V1), (False, V2)]
    assert applied({}, difference("shop", VIEW, ITEM, {}, after)) == rows


def test_a_step_that_just_fits_is_not_paged():
    after = contributed(*[Row(GROUP, group=f"group {number}", n=Count()) for number in range(PAGE_ROWS)])
    found = replanned(KEY, ITEM, (Step(VIEW, V1, None, after),), LedgerItem.of(None))
    assert not found.partial
    assert len(found.effects) + 1 == 100  # with the item that holds the contribution


def stored_after(stored, found):
    """The ledger item after a transition, with a contribution that is kept elsewhere filled in."""
    (part,) = found.guard.contributions
    text = next((write.text for write in found.effects if isinstance(write, PutState)), part.contribution)
    return LedgerItem(stored.revision + 1, 1, {part.handler: StoredContribution(part.version, text)})


def test_the_first_page_of_an_item_without_ledger_has_a_version_below_every_other():
    after = contributed(*[Row(GROUP, group=str(number), n=Count()) for number in range(99)])
    found = replanned(KEY, ITEM, (Step(VIEW, V1, None, after),), LedgerItem.of(None))
    assert found.partial
    assert not found.guard.expires
    assert found.guard.contributions[0].version == ""
    assert found.tallies == (Tally("OWNED", PAGE_ROWS, 0),)


def test_a_repair_is_written_also_when_nothing_differs_and_bears_a_fence():
    found = holding(V2, FIVE)
    transition = reconciled(KEY, ITEM, (Step(VIEW, V1, None, FIVE),), found)
    assert transition.effects == ()
    assert transition.guard.contributions == (HandlerContribution("OWNED", V2, stored_text(FIVE), stored_text(FIVE)),)
    assert (transition.guard.revision, transition.guard.fence, transition.guard.expires) == (
        found.revision,
        True,
        False,
    )


def test_a_repair_of_an_item_that_nothing_is_known_of_is_older_than_every_record():
    transition = reconciled(KEY, ITEM, (Step(VIEW, BEFORE_ALL, None, {}),), LedgerItem.of(None))
    assert transition.guard.contributions == (HandlerContribution("OWNED", BEFORE_ALL, "", ""),)
    assert (transition.guard.revision, transition.guard.expires) == (0, True)
    assert BEFORE_ALL < V1


@pytest.mark.parametrize(("asked", "version"), [(V1, V2), (V2, V2), (V3, V3)])
def test_a_repair_never_lowers_the_version(asked, version):
    transition = reconciled(KEY, ITEM, (Step(VIEW, asked, None, {}),), holding(V2, FIVE))
    assert transition.guard.contributions[0].version == version

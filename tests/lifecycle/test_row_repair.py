"""Rows that are corrected beside live writers: what looks as it did may have changed."""

from random import Random

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.keys.table import CONTRIBUTORS, MARK, OWNER
from streamfold.lifecycle.row_repair import RowCorrection
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CorrectRow
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
OPEN = Key("OPEN", "COUNT")
OWN = Key("OWN#{item_id}", "OWN")
ROW = ("main", "OPEN", "COUNT")
HISTORIES, NIGHTLY_HISTORIES = 100, 1_700
"""Of each fault, of three."""


def application():
    router = Router()

    @router.view(ITEM, into=OPEN)
    def open_items(item):
        return Row(n=Count(), total=Sum(item["amount"])) if item["state"] == "open" else None

    @router.index(ITEM, into=OWN)
    def own(item):
        return Row(amount=item["amount"]) if item["state"] == "open" else None

    return App("shop", routers=[router])


APP = application()


class Beside:
    """A table, a state, and writers who come in at chosen moments of a correction."""

    def __init__(self, count=4):
        self.engine = MemoryEngine(APP.tables.values(), APP.chains)
        self.run = Runtime(APP, self.engine, Settings(), pause=lambda _: None)
        self.images, self.sequence = {}, 0
        self.set(*((number, "open" if number % 2 else "closed", 5) for number in range(count)))

    def set(self, *items):
        changes = []
        for number, state, amount in items:
            self.sequence += 1
            new = item(f"ITEM#{number}", "METADATA", state=state, amount=amount)
            changes.append(change(self.images.get(number), new, self.sequence))
            self.images[number] = new
        self.engine.put_sources(newest_sources(changes))
        assert not process_changes(self.run, changes).failures

    def toggle(self, *numbers):
        self.set(*((n, "closed" if self.images[n]["state"] == "open" else "open", 5) for n in numbers))

    def expected(self):
        amounts = [image["amount"] for image in self.images.values() if image["state"] == "open"]
        return {"n": len(amounts), "total": sum(amounts), CONTRIBUTORS: len(amounts)}

    def correct(self, rows, moments):
        """Corrects rows; ``moments`` says by number of a read what happens before it."""
        engine, calls = self.engine, iter(range(1_000))
        read_rows, state_items, read_state = engine.read_rows, engine.state_items, engine.read_state
        inside = []

        def at_a_read(read):
            def reading(*arguments, **options):
                if not inside:
                    inside.append(True)
                    moments.pop(next(calls), lambda: None)()
                    inside.clear()
                return read(*arguments, **options)

            return reading

        def scanned():
            for each in sorted(state_items(), key=str):
                inside.append(True)
                moments.pop(next(calls), lambda: None)()
                inside.clear()
                key = each["pk"]["S"], each["sk"]["S"]
                yield next((now for now in state_items() if (now["pk"]["S"], now["sk"]["S"]) == key), each)

        engine.read_rows, engine.read_state, engine.state_items = at_a_read(read_rows), at_a_read(read_state), scanned
        try:
            return RowCorrection(self.run).correct(rows)
        finally:
            engine.read_rows, engine.read_state, engine.state_items = read_rows, read_state, state_items


def wrong_count(beside):
    beside.engine.rows[ROW] |= {"n": {"N": "70"}, "total": {"N": "1"}}


def removed(beside):
    beside.engine.rows.pop(ROW, None)


def fewer_contributors(beside):
    beside.engine.rows[ROW] |= {CONTRIBUTORS: {"N": "1"}, "n": {"N": "1"}}


FAULTS = [wrong_count, removed, fewer_contributors]


def together(beside, one, other):
    return lambda: beside.toggle(one, other)


def apart(beside, one, other):
    return lambda: (beside.toggle(one), beside.toggle(other))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("how", [together, apart])
def test_an_item_in_and_one_out_at_each_point_of_the_scan_leaves_no_wrong_row(fault, how):
    for one, other in ((0, 1), (1, 0)):
        for moment in range(40):
            beside = Beside()
            fault(beside)
            found = beside.correct([ROW], {moment: how(beside, one, other)})
            check(beside, found)


@pytest.mark.parametrize("fault", FAULTS)
def test_items_that_come_and_go_at_any_points_leave_no_wrong_row(fault):
    for seed in range(HISTORIES):
        corrected(fault, Random(seed))


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_items_that_come_and_go_at_any_points_leave_no_wrong_row_in_thousands_of_histories(fault):
    for seed in range(NIGHTLY_HISTORIES):
        corrected(fault, Random(f"nightly {seed}"))


def corrected(fault, random):
    beside = Beside(6)
    fault(beside)
    one, other = random.sample(range(6), 2)
    first, second = sorted(random.sample(range(60), 2))
    if random.random() < 0.5:
        moments = {first: together(beside, one, other)}
    else:
        moments = {first: apart(beside, one, other), second: together(beside, other, one)}
    check(beside, beside.correct([ROW], moments))


def check(beside, found):
    row = beside.engine.read_rows([ROW]).get(ROW, {})
    if not found.corrected:  # others changed it all the time: the next run corrects it
        found = beside.correct([ROW], {})
        row = beside.engine.read_rows([ROW]).get(ROW, {})
    assert found.corrected == [ROW]
    expected = beside.expected()
    assert {name: row.get(name, 0) for name in expected} == expected
    assert not str(row.get(OWNER, "")).startswith(MARK)


def test_a_step_that_the_row_does_not_take_takes_the_mark_away():
    beside = Beside()
    beside.engine.rows[ROW] = {"PK": {"S": "OPEN"}, "SK": {"S": "COUNT"}, CONTRIBUTORS: {"N": "0"}, OWNER: {"S": "#m"}}
    beside.set((1, "open", 9))
    assert OWNER not in beside.engine.rows[ROW]


def test_a_row_that_is_left_is_as_it_was():
    beside = Beside()
    beside.engine.rows[ROW] |= {"n": {"BOOL": True}}
    before = beside.engine.read_rows([ROW])
    found = beside.correct([ROW], {})
    assert ([each.row for each in found.remaining], beside.engine.read_rows([ROW])) == ([ROW], before)


def test_a_row_that_changes_all_the_time_is_left_without_a_mark():
    beside = Beside()
    removed(beside)
    moments = {moment: lambda: beside.toggle(1, 2) for moment in range(0, 1_000, 2)}
    found = beside.correct([ROW], moments)
    assert found.corrected == []
    assert found.remaining
    assert not str(beside.engine.rows.get(ROW, {}).get(OWNER, {}).get("S", "")).startswith(MARK)


def test_a_live_put_of_a_marked_row_that_others_add_to_adds():
    beside = Beside()
    row = ("main", "OWN#0", "OWN")
    beside.engine.transact([CorrectRow(row, {}, (OWNER,), {OWNER: "#m"}, {CONTRIBUTORS: 0})], 0)
    beside.toggle(0)
    assert beside.engine.read_rows([row])[row]["amount"] == 5


def test_a_whole_row_that_came_back_meanwhile_is_not_removed():
    beside, row = Beside(), ("main", "OWN#0", "OWN")
    beside.toggle(0)
    stored = beside.engine.rows[row]
    for moment in range(12):
        beside.set((0, "closed", 5))
        beside.engine.rows[row] = dict(stored)
        beside.correct([row], {moment: lambda: beside.toggle(0)})
        assert (row in beside.engine.rows) == (beside.images[0]["state"] == "open")


def test_a_whole_row_that_somebody_changed_is_put_again():
    beside, row = Beside(), ("main", "OWN#1", "OWN")
    stored = dict(beside.engine.rows[row])
    unowned = {name: value for name, value in stored.items() if name != OWNER}
    for by_hand in ({**stored, "amount": {"N": "9"}}, unowned, None):
        beside.engine.rows.pop(row)
        if by_hand is not None:
            beside.engine.rows[row] = by_hand
        assert beside.correct([row], {}).corrected == [row]
        assert beside.engine.rows[row] == stored


@pytest.mark.parametrize("row", [("main", "OWN#1", "OWN"), ROW, ("main", "OWN#none", "OWN")])
def test_an_item_of_the_application_is_left_as_it_is(row):
    beside = Beside()
    own = beside.engine.rows[row] = {"PK": {"S": row[1]}, "SK": {"S": row[2]}, "amount": {"N": "9"}}
    found = beside.correct([row], {})
    assert (found.corrected, [each.row for each in found.remaining]) == ([], [row])
    assert "belongs to the application itself" in found.remaining[0].why
    assert beside.engine.rows[row] == own


def test_a_comparison_names_items_of_the_application_and_changes_none():
    beside, taken, free = Beside(), ("main", "OWN#1", "OWN"), ("main", "OWN#none", "OWN")
    for row in (taken, free):
        beside.engine.rows[row] = {"PK": {"S": row[1]}, "SK": {"S": row[2]}, "amount": {"N": "9"}}
    found = RowsVerifier(beside.run, APP.routes, live=False).verify()
    assert [(each.row, each.what, each.shown) for each in found.different] == [(taken, "taken", {"amount": 9})]
    assert found.writers == 1


@pytest.mark.parametrize(("expected", "absent"), [({"n": 3}, ()), ({}, ("n",)), ({"n": 2, OWNER: "x"}, ())])
def test_a_correction_is_refused_where_the_row_is_another(expected, absent):
    beside = Beside()
    before = beside.engine.read_rows([ROW])
    assert beside.engine.transact([CorrectRow(ROW, expected, absent, {"n": 9})], 0) is not None
    assert beside.engine.read_rows([ROW]) == before

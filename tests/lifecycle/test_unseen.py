"""What readers do not see of rows is compared with a fold and corrected, so that later steps go right."""

from random import Random

import pytest

from streamfold import App, Key, Max, Router, Row, Sum, Table
from streamfold.batch.fan_outs import run_chains
from streamfold.batch.process import process_changes
from streamfold.derivations.expected import UNFOUNDED
from streamfold.engines import MemoryEngine
from streamfold.keys.table import CONTRIBUTORS, EDGE, LIFE, OWNER, PLACES, PLAIN_NAMES, STAMP
from streamfold.ledger.contribution import partition
from streamfold.lifecycle.row_repair import reconcile_rows
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.unseen import ENTRIES
from streamfold.records.values import decode, encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import DeleteState, PutState, StateKey
from tests.helpers.everything import ORDER_ITEM, claims, router
from tests.helpers.histories import EXPIRED, random_writes
from tests.helpers.records import change, item

EXPIRING = Key("EXPIRING#{customer}", "TOTAL", table=Table("main", ttl="expires"))
EXPIRES_AT = 4_000_000_000
HISTORIES, CI_HISTORIES, NIGHTLY_HISTORIES = 8, 40, 600


def expiring(item):
    yield Row(customer=item["customer"], units=Sum(item["quantity"]), most=Max(item["price"]), expires=Max(EXPIRES_AT))


def application():
    """All handlers of the shared application whose rows are folds of items, and one whose rows expire."""
    chosen = Router()
    chosen.routes = [route for route in (*router.routes, *claims.routes) if route.kind.contributes]
    return App("everything", routers=[chosen])


def application_that_expires():
    chosen = Router()
    chosen.view(ORDER_ITEM, into=EXPIRING)(expiring)
    return App("expiring", routers=[chosen])


class Played:
    """An application, its table and its state."""

    def __init__(self, app):
        self.app = app
        self.engine = MemoryEngine(app.tables.values(), app.chains)
        self.engine.source_tables.add("main")
        self.run = Runtime(app, self.engine, Settings(), pause=lambda _: None)
        self.images, self.sequence = {}, 0

    def write(self, *writes):
        """Writes items, each a key and its attributes or None, in one batch."""
        changes = []
        for key, attributes in writes:
            gone = attributes is None or attributes is EXPIRED
            old, new = self.images.get(key), None if gone else item(*key, **attributes)
            if old != new:
                self.sequence += 1
                changes.append(change(old, new, self.sequence))
                self.images[key] = new
        self.engine.put_sources(newest_sources(changes))
        assert process_changes(self.run, changes).failures == []
        run_chains(self.run, self.engine)

    def differing(self):
        return RowsVerifier(self.run, self.app.routes, live=False).verify().different

    def reconcile(self):
        found = reconcile_rows(self.run, [route.name for route in self.app.routes])
        assert found.corrected.remaining == []
        return found.corrected.corrected

    def row(self, key):
        return decode({"M": self.engine.rows[key]})

    def plant(self, key, **attributes):
        """Changes attributes of a row by hand; None removes one."""
        row = {**self.row(key), **attributes}
        self.engine.rows[key] = encode({name: value for name, value in row.items() if value is not None})["M"]


def played(random, count, app=None):
    found = Played(app or application())
    history = random_writes(random, count)
    while history:
        size = random.choice((1, 2, 5, 20))
        found.write(*history[:size])
        del history[:size]
    return found


def check_path_independence(seed):
    found = played(Random(seed), 60)
    assert found.differing() == [], seed


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_rows_of_any_history_have_what_a_fold_has(seed):
    check_path_independence(seed)


def kinds_of_faults(found, key):
    """The faults that can be planted in what readers do not see of a row, each with its name."""
    row = found.row(key)
    yield CONTRIBUTORS, lambda: found.plant(key, **{CONTRIBUTORS: row[CONTRIBUTORS] + 1})
    if row[CONTRIBUTORS] > 1:
        yield CONTRIBUTORS, lambda: found.plant(key, **{CONTRIBUTORS: 1})
    yield OWNER, lambda: found.plant(key, **{OWNER: "everything/another"})
    for name in row:
        if name.startswith(EDGE):
            yield name, lambda name=name: found.plant(key, **{name: f"{row[name].split()[0]} N1#main"})
            yield name, lambda name=name: found.plant(key, **{name: "max:1 "})
            yield STAMP, lambda: found.plant(key, **{STAMP: None})
        if name.startswith(PLACES):
            yield name, lambda name=name: found.plant(key, **{name: []})
        if name == PLAIN_NAMES:
            yield name, lambda name=name: found.plant(key, **{name: None})
            yield name, lambda name=name: found.plant(key, **{name: [*row[name], "score"]})
        if name == LIFE:
            yield name, lambda name=name: found.plant(key, **{name: "another"})
            yield name, lambda name=name: found.plant(key, **{name: None})
    begins = {
        partition(found.app.name, route.name, name.removeprefix(EDGE), key, row.get(LIFE, ""))
        for route in found.app.routes
        for name in row
        if name.startswith(EDGE)
    }
    for entry in [each for each in found.engine.state if each.pk in begins]:
        text, other = found.engine.state[entry]["s"], entry.sk.partition("#")[0] + "#main ORDER#9 ITEM#x"
        for write in (DeleteState(entry), PutState(entry, '{"N":"77"}'), PutState(StateKey(entry.pk, other), text)):
            yield ENTRIES, lambda write=write: found.engine.transact([write], 0)


def unseen_and_shown(found):
    """All rows, without stamps and lives, which name steps, and without owners: additions remove these."""
    return {
        key: {name: value for name, value in found.row(key).items() if name not in (STAMP, LIFE, OWNER)}
        for key in found.engine.rows
    }


def check_planted(seed, make):
    """Plants faults in a history; each is found, corrected, and changes nothing of what follows."""
    random = Random(seed)
    found, without = played(Random(seed), 60, make()), played(Random(seed), 60, make())
    rows = sorted(found.engine.rows, key=str)
    for key in random.sample(rows, min(3, len(rows))):
        name, plant = random.choice([*kinds_of_faults(found, key)])
        plant()
        differing = [(each.row, each.what) for each in found.differing()]
        assert differing == [(key, UNFOUNDED)], (seed, key, name)
        assert found.reconcile() == [key], (seed, key, name)
        assert found.differing() == [], (seed, key, name)
    for both in (found, without):
        for write in random_writes(Random(seed + 1), 30):
            both.write(write)
    assert unseen_and_shown(found) == unseen_and_shown(without), seed
    assert found.differing() == [], seed


REFUND, DAY = Key("PAY#{payment_id}", "X"), Key("DAY#{day}", "REFUNDS")
DAY_1 = ("main", "DAY#1", "REFUNDS")


def refunds():
    chosen = Router()

    @chosen.view(REFUND, into=DAY)
    def refunds(payment):
        yield Row(day=payment["day"], refunded=Sum(payment["refund"]), most=Max(payment["refund"]))

    return App("shop", routers=[chosen])


def paid(*amounts):
    found = Played(refunds())
    found.write(*(((f"PAY#{number}", "X"), {"day": "1", "refund": each}) for number, each in enumerate(amounts)))
    return found


def test_a_row_that_was_removed_and_made_again_keeps_what_it_holds_when_older_items_go():
    found = paid(0, 0)
    del found.engine.rows[DAY_1]
    found.write((("PAY#2", "X"), {"day": "1", "refund": 7}))
    (one,) = found.differing()
    assert (one.row, one.shown, one.expected) == (DAY_1, {"refunded": 7, "most": 7}, {"refunded": 7, "most": 7})
    assert (one.what, one.unseen) == (UNFOUNDED, {CONTRIBUTORS: (1, 3)})
    assert found.reconcile() == [DAY_1]
    found.write((("PAY#0", "X"), None), (("PAY#1", "X"), None))
    assert (found.row(DAY_1)["refunded"], found.row(DAY_1)[CONTRIBUTORS]) == (7, 1)


def test_an_entry_of_no_item_is_removed_before_a_row_shows_it():
    found = paid(5, 3)
    (entry,) = [each for each in found.engine.state if each.sk.endswith("PAY#1 X") and "most" in each.pk]
    found.engine.transact([PutState(StateKey(entry.pk, entry.sk.replace("PAY#1", "PAY#9")), '{"N":"4"}')], 0)
    assert found.reconcile() == [DAY_1]
    found.write((("PAY#0", "X"), None))
    assert found.row(DAY_1)["most"] == 3


def test_the_life_of_a_row_that_somebody_changed_is_that_of_its_items_again():
    found = played(Random(0), 60, application_that_expires())
    key = next(iter(found.engine.rows))
    before = found.row(key)
    found.plant(key, **{LIFE: "another"})
    assert found.reconcile() == [key]
    assert {**found.row(key), STAMP: ""} == {**before, STAMP: ""}


APPLICATIONS = pytest.mark.parametrize("make", [application, application_that_expires])


@APPLICATIONS
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_fault_in_what_no_reader_sees_is_found_and_corrected(seed, make):
    check_planted(seed, make)


@pytest.mark.ci
@APPLICATIONS
def test_faults_in_what_no_reader_sees_are_found_and_corrected_in_many_histories(make):
    for seed in range(1_000, 1_000 + CI_HISTORIES):
        check_path_independence(seed)
        check_planted(seed, make)


@pytest.mark.nightly
@APPLICATIONS
def test_faults_in_what_no_reader_sees_are_found_and_corrected_in_hundreds_of_histories(make):
    for seed in range(10_000, 10_000 + NIGHTLY_HISTORIES):
        check_path_independence(seed)
        check_planted(seed, make)

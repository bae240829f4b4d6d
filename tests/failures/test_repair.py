"""Repair: led to what the source says, behind a fence, whatever lands before, between and after its calls."""

import pytest

from streamfold import App, Count, Key, Router, Row, Version
from streamfold.batch.process import check_application, process_event
from streamfold.engines import EmbeddedEngine
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import Inserted
from streamfold.errors import EngineError, EngineUnavailable, HandlerError
from streamfold.failures.repair import Repair
from streamfold.keys.table import CONTRIBUTORS
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.envelope import Origins
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CONDITION, VALIDATION, AddRow, DeleteRow, LedgerWrite, Reason, Refused
from tests.helpers.expenses import CARD, EXPENSE, GROUP, group_total
from tests.helpers.model import stored
from tests.helpers.records import LABEL
from tests.helpers.source import Source

TAG = Key("TAG#{n:06d}", "TOTAL")
ITEM = ("main", "EXPENSE#1", "METADATA")
LEDGER = ledger_key("shop", "main", ITEM)


def make_app():
    router = Router()
    router.audit(EXPENSE)
    router.view(EXPENSE, into=GROUP)(group_total)

    @router.index(EXPENSE, into=CARD)
    def card(item):
        yield Row(group=item["group"])

    @router.view(EXPENSE, into=TAG)
    def tags(item):
        for number in range(*item.get("tags", (0, 0))):
            yield Row(n=number, uses=Count())

    return App("shop", routers=[router])


class Shop:
    """An application on a store that holds its sources; ``before[NAME]`` is called ahead of a call of that name."""

    separate = by_prefix = None

    def __init__(self):
        self.app = make_app()
        self.engine = EmbeddedEngine(self.app.tables.values())
        self.source = Source()
        self.before = {}
        self.calls = []
        self.pauses = []
        self.run = Runtime(self.app, self, Settings(), pause=self.pauses.append)
        check_application(Runtime(self.app, self, Settings()))
        self.calls.clear()

    def __getattr__(self, name):
        def call(*arguments, **more):
            self.calls.append(name)
            if name in self.before and (answer := self.before[name](*arguments)) is not None:
                return answer
            return getattr(self.engine, name)(*arguments, **more)

        return call

    def put(self, partition="EXPENSE#1", **attributes):
        """The record of a put; the source item is there from now on."""
        return self._keep(self.source.put(partition, **attributes))

    def remove(self, partition="EXPENSE#1"):
        return self._keep(self.source.remove(partition))

    def _keep(self, record):
        body = record["dynamodb"]
        item = ("main", *(decode(body["Keys"][name]) for name in ("PK", "SK")))
        self.engine.put_sources([(item, body.get("NewImage"), version(record))])
        return record

    def deliver(self, *records):
        return process_event(Runtime(self.app, self.engine, Settings()), list(records)).failures

    def planned(self, record):
        """The writes of a record's delivery, which do not land: those of a call that is a zombie from now on."""
        zombie = Zombie(self.engine)
        process_event(Runtime(self.app, zombie, Settings()), [record])
        return zombie

    def repair(self, **options):
        return Repair(self.run).item(ITEM, **options)

    def rows(self):
        rows = stored(self.app, self.engine)
        return {key: row for key, row in rows.items() if not key[1].startswith("AUDIT#")}

    def empty_rows(self):
        items = self.engine.items(self.app.tables["main"])
        return [item["PK"]["S"] for item in items if item.get(CONTRIBUTORS) == {"N": "0"}]

    def ledger(self):
        return self.engine.read_state([LEDGER])[LEDGER]


class Zombie:
    """An engine whose transactions land later."""

    def __init__(self, engine):
        self.engine = engine
        self.waiting = []

    def transact(self, writes, expires_at):
        self.waiting.append((writes, expires_at))
        raise EngineUnavailable("timed out")

    def insert_rows(self, rows):
        return Inserted([], [])

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def land(self):
        return [self.engine.transact(*call) for call in self.waiting]


def version(record):
    return Version.of(0, LABEL, record["dynamodb"]["SequenceNumber"]).text


def group(name, total, expenses=1):
    return {("main", f"GROUP#{name}", "TOTAL"): {"total": total, "expenses": expenses}}


@pytest.fixture
def shop():
    return Shop()


def test_repair_makes_good_a_record_that_never_came(shop):
    shop.put(group="x", amount=5)
    shop.repair()
    assert shop.rows() == group("x", 5) | {("main", "CARD#1", "CARD"): {"group": "x"}}


def test_a_row_that_was_gone_while_the_item_was_is_amended_once_it_is_there_again(shop):
    """The refusal of a step from another contribution says nothing of the row."""
    shop.deliver(shop.put(group="x", amount=5))
    shop.put(group="x", amount=9)

    def goes(*_):
        shop.before = {"read_state": comes}
        shop.deliver(shop.source.remove("EXPENSE#1"))

    def comes(*_):
        shop.before = {}
        shop.deliver(shop.source.put("EXPENSE#1", group="x", amount=7))

    shop.before["transact"] = goes

    assert [each.error for each in shop.repair(handlers=["group_total"])] == [None]
    assert shop.rows()[("main", "GROUP#x", "TOTAL")] == {"total": 9, "expenses": 1}


def test_a_repair_that_finds_no_row_warns_of_it(shop):
    shop.deliver(shop.put(group="x", amount=5))
    shop.engine.transact([DeleteRow(("main", "GROUP#x", "TOTAL"))], 0)
    shop.put(group="x", amount=7)
    warned = []
    shop.run.warn = warned.append

    shop.repair()

    (text,) = warned
    assert "Rows that handler group_total adds to were removed by somebody else" in text


def test_repair_moves_what_an_older_record_left(shop):
    shop.deliver(shop.put(group="x", amount=5))
    shop.put(group="y", amount=7)
    repaired = {each.handler: (each.written, each.removed) for each in shop.repair()}
    assert shop.rows() == group("y", 7) | {("main", "CARD#1", "CARD"): {"group": "y"}}
    assert repaired == {"group_total": (2, 1), "card": (1, 0), "tags": (0, 0)}


def test_repair_retracts_what_an_item_that_is_gone_contributed(shop):
    shop.deliver(shop.put(group="x", amount=5))
    shop.remove()
    shop.repair()
    assert shop.rows() == {}
    assert "ttl" in shop.ledger()


def test_repair_writes_a_fence_also_when_nothing_differs(shop):
    record = shop.put(group="x", amount=5)
    shop.deliver(record)
    before = shop.ledger()
    shop.repair(handlers=["group_total"])
    fence = {"group_total.fence": True, "r": before["r"] + 1}
    assert shop.ledger() == before | fence


def test_repair_touches_only_the_handlers_that_it_is_asked_for(shop):
    shop.put(group="x", amount=5)
    assert [each.handler for each in shop.repair(handlers=["card"])] == ["card"]
    assert {name for name in shop.ledger() if name.endswith(".v")} == {"card.v"}


def test_next_record_clears_the_fence_and_moves_the_rows_on(shop):
    shop.deliver(shop.put(group="x", amount=5))
    shop.repair()
    assert shop.deliver(shop.put(group="y", amount=7)) == []
    assert shop.rows() == group("y", 7) | {("main", "CARD#1", "CARD"): {"group": "y"}}
    assert not [name for name in shop.ledger() if name.endswith(".fence")]


def test_ledger_is_read_before_the_source(shop):
    shop.put(group="x", amount=5)
    shop.repair(handlers=["card"])
    manifest, *reads = [call for call in shop.calls if call.startswith("read")]
    assert (manifest, reads) == ("read_state", ["read_state", "read_source"])


def test_record_that_lands_between_the_reads_is_not_overwritten_by_an_older_image(shop):
    """Counter-example 12: had the source been read first, its old image would be written over the new one."""
    shop.deliver(shop.put(group="x", amount=5))

    def another_record(keys):
        if keys[0].pk.startswith("ledger#"):
            del shop.before["read_state"]
            shop.deliver(shop.put(group="y", amount=7))

    shop.before["read_state"] = another_record
    shop.repair(handlers=["group_total"])
    assert shop.rows().items() >= group("y", 7).items()
    assert ("main", "GROUP#x", "TOTAL") not in shop.rows()


def test_record_that_lands_behind_the_reads_sends_the_repair_back_to_its_first_read(shop):
    shop.deliver(shop.put(group="x", amount=5))

    def another_record(*_):
        del shop.before["transact"]
        shop.deliver(shop.put(group="y", amount=7))

    shop.before["transact"] = another_record
    shop.repair(handlers=["group_total"])
    assert shop.calls.count("transact") == 2
    assert shop.calls[-3:] == ["read_state", "read_source", "transact"]
    assert shop.rows().items() >= group("y", 7).items()


def test_zombie_that_lands_behind_a_repair_of_nothing_changes_nothing(shop):
    """Counter-example 14: source and ledger are empty, and the write that is still on its way has to be refused."""
    zombie = shop.planned(shop.put(group="x", amount=5))
    shop.remove()
    shop.repair()
    assert all(zombie.land())
    assert shop.rows() == {}


def test_zombie_of_a_record_that_is_redriven_changes_nothing(shop):
    """Counter-example 15: both records were given up, and nothing is stored that could differ."""
    zombie = shop.planned(shop.put(group="x", amount=5))
    removal = shop.remove()
    shop.repair(version=version(removal))
    assert all(zombie.land())
    assert shop.deliver(removal) == []
    assert shop.rows() == {}
    assert shop.ledger()["group_total.v"] == version(removal)


def test_step_that_was_planned_again_is_refused_by_a_repair_in_between(shop):
    """Counter-example 13: the repair leaves the version as it was, so only the revision tells that it was there."""
    shop.deliver(shop.put(group="x", amount=5))
    shop.put(group="y", amount=6)  # given up: the next record is refused and planned again
    newest = shop.put(group="z", amount=7)

    def repaired_before_the_second_try(*_):
        if shop.calls.count("transact") == 2:
            Repair(shop.run.on(shop.engine)).item(ITEM)

    shop.before["transact"] = repaired_before_the_second_try
    assert process_event(Runtime(shop.app, shop, Settings()), [newest]).failures == []
    assert shop.rows() == group("z", 7) | {("main", "CARD#1", "CARD"): {"group": "z"}}


def test_write_that_was_planned_before_a_repair_is_refused_by_its_fence(shop):
    """Version and contribution are what the write expects, and the row has another item's contribution."""
    shop.deliver(shop.put(group="x", amount=5), shop.put("EXPENSE#2", group="x", amount=1))
    before = shop.rows()
    zombie = shop.planned(shop.put(group="y", amount=7))
    shop.put(group="x", amount=5)  # both are given up
    shop.repair()
    assert all(zombie.land())
    assert shop.rows() == before


def test_record_that_comes_behind_the_redrive_of_a_newer_one_changes_nothing(shop):
    """An invocation that was believed dead plans again from what it finds: only the version tells it to stop."""
    shop.deliver(shop.put(group="x", amount=5))
    older, newest = shop.put(group="y", amount=6), shop.put(group="z", amount=7)
    shop.repair(version=version(newest))
    assert shop.deliver(older) == []
    assert shop.rows() == group("z", 7) | {("main", "CARD#1", "CARD"): {"group": "z"}}


def test_version_of_a_redriven_record_is_kept_unless_the_ledger_has_a_newer(shop):
    older, newer = shop.put(group="x", amount=5), shop.put(group="y", amount=7)
    (first,) = shop.repair(version=version(newer), handlers=["card"])
    (second,) = shop.repair(version=version(older), handlers=["card"])
    assert (first.known, second.known) == (False, True)
    assert shop.ledger()["card.v"] == version(newer)


def test_record_that_comes_behind_its_redrive_is_known(shop):
    record = shop.put(group="x", amount=5)
    shop.repair(version=version(record))
    rows = shop.rows()
    shop.deliver(record)
    assert shop.rows() == rows


def test_handler_that_raises_is_reported_and_the_others_are_repaired(shop):
    shop.put(group="broken", amount=5)
    errors = {each.handler: str(each.error) for each in shop.repair() if each.error}
    assert errors == {"group_total": "no group"}
    assert shop.rows() == {("main", "CARD#1", "CARD"): {"group": "broken"}}


def test_more_rows_than_one_transaction_takes_go_page_by_page_and_those_left_empty_are_removed(shop):
    shop.deliver(shop.put(group="x", amount=5, tags=[0, 90]))
    shop.put(group="x", amount=5, tags=[60, 150])
    (tags,) = shop.repair(handlers=["tags"])
    assert (tags.written, tags.removed) == (120, 60)
    assert {key[1] for key in shop.rows() if key[1].startswith("TAG#")} == {f"TAG#{n:06d}" for n in range(60, 150)}
    assert shop.empty_rows() == []


def test_row_that_a_crash_left_empty_is_removed_with_the_record_that_names_it(shop):
    shop.deliver(shop.put(group="x", amount=5))
    removal = shop.remove()
    shop.engine.remove_empty = lambda rows: []
    shop.deliver(removal)
    del shop.engine.remove_empty
    assert shop.empty_rows() == ["GROUP#x"]
    shop.repair(version=version(removal), changes=[Origins(shop.app.source_tables, Settings()).change(removal)])
    assert shop.empty_rows() == []


def test_state_without_sources_refuses_and_retracts_nothing(shop):
    shop.deliver(shop.source.put("EXPENSE#1", group="x", amount=5))
    rows = shop.rows()
    with pytest.raises(EngineError, match="holds no source items of table 'main'"):
        shop.repair()
    assert shop.rows() == rows


@pytest.mark.parametrize("call", ["read_state", "read_source", "transact", "remove_empty"])
def test_store_that_does_not_answer_is_reported_and_the_next_repair_does_it(shop, call):
    shop.deliver(shop.put(group="x", amount=5))
    shop.put(group="y", amount=7)

    def unavailable(*_):
        raise EngineUnavailable("no answer")

    shop.before[call] = unavailable
    (repaired,) = shop.repair(handlers=["group_total"])
    assert str(repaired.error) == "no answer"
    del shop.before[call]
    (repaired,) = shop.repair(handlers=["group_total"])
    assert repaired.error is None
    assert shop.rows().items() >= group("y", 7).items()


def test_conflict_is_tried_again_after_a_pause(shop):
    shop.put(group="x", amount=5)

    def conflict(*_):
        del shop.before["transact"]
        return Refused((Reason("TransactionConflict"), None))

    shop.before["transact"] = conflict
    (repaired,) = shop.repair(handlers=["group_total"])
    assert repaired.error is None
    assert len(shop.pauses) == 1


def test_repair_that_is_refused_again_and_again_gives_up(shop):
    shop.put(group="x", amount=5)
    shop.before["transact"] = lambda *_: Refused((Reason(CONDITION), None))
    (repaired,) = shop.repair(handlers=["group_total"])
    assert shop.calls.count("transact") == TRIES_MAX
    assert str(repaired.error) == (
        f"Refused {TRIES_MAX} times in a row, because others change the item or its rows; do it again later."
    )


def test_write_that_the_store_refuses_for_good_is_reported(shop):
    shop.put(group="x", amount=5)
    text = encode({"PK": "GROUP#x", CONTRIBUTORS: 1, "total": "text"})["M"]
    shop.engine.put_sources([(("main", "GROUP#x", "TOTAL"), text, "v")])
    (repaired,) = shop.repair(handlers=["group_total"])
    assert isinstance(repaired.error, HandlerError)
    assert str(repaired.error) == (
        f"The store refused the write with {VALIDATION}: attribute total of row ('GROUP#x', 'TOTAL') is not a number"
    )


def test_row_of_another_owner_is_reported(shop):
    shop.put(group="x", amount=5)
    shop.before["transact"] = lambda *_: Refused((None, Reason(CONDITION, {"_sf_o": "main|EXPENSE#2|METADATA"})))
    (repaired,) = shop.repair(handlers=["card"])
    assert "belongs to main|EXPENSE#2|METADATA" in str(repaired.error)


def test_dry_run_says_what_it_would_do_and_writes_nothing(shop):
    shop.deliver(shop.put(group="x", amount=5))
    shop.put(group="y", amount=7)
    rows, ledger = shop.rows(), shop.ledger()
    dry = Repair(shop.run, dry_run=True)
    assert [(each.handler, each.written) for each in dry.item(ITEM)] == [("group_total", 2), ("card", 1), ("tags", 0)]
    assert (shop.rows(), shop.ledger()) == (rows, ledger)
    assert "transact" not in shop.calls


def test_guard_stands_first_and_carries_the_fence(shop):
    shop.put(group="x", amount=5)
    sent = []
    shop.before["transact"] = lambda writes, _: sent.append(writes)
    shop.repair(handlers=["group_total"])
    ((guard, effect),) = sent
    assert isinstance(guard, LedgerWrite)
    assert (guard.fence, guard.revision) == (True, 0)
    assert isinstance(effect, AddRow)

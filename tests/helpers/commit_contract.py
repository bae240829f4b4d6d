"""Plans carried out through refusals, conflicts, lost answers and an invocation that runs out of time, on any engine.

``test_commit.py`` runs it on the embedded engine, ``engine/test_commit_on_local.py`` on DynamoDB Local.
"""

from collections import Counter as Tally
from decimal import Decimal
from unittest.mock import patch

import pytest

from streamfold import Add, App, Count, Delete, Key, Put, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.commit.committer import HOT_ROWS_MAX
from streamfold.commit.outcome import Held
from streamfold.engines.protocol import Inserted
from streamfold.errors import EngineUnavailable, HandlerError, NotStarted, RowTaken, TableThrottled
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.values import decode
from streamfold.runtime import Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.writes.guarded import (
    CONDITION,
    VALIDATION,
    LedgerWrite,
    PutRow,
    Reason,
    Refused,
    SwapMarker,
)
from tests.helpers.expenses import CARD, EXPENSE, GROUP, group_total
from tests.helpers.model import model, stored
from tests.helpers.source import Source

SESSION = Key("SESSION#{session_id}", "METADATA")
PAYER = Key("PAYER#{payer}", "TOTAL")
TAG = Key("TAG#{tag}", "{n:06d}")
PAPER = Key("PAPER#{expense_id}", "{page:06d}")
SEEN = Key("SEEN#{session_id}", "LAST")
SIGN_INS = Key("SIGNINS#{day}", "TOTAL")
CLOCK = 1_800_000_000.0
EXPIRES = int(CLOCK) + 30 * 24 * 60 * 60


def make_app():  # noqa: C901 - one application with seven small handlers
    router = Router()
    router.audit(SESSION, name="audit")
    router.view(EXPENSE, into=GROUP)(group_total)

    @router.view(EXPENSE, into=PAYER)
    def payer_total(item):
        yield Row(payer=item["payer"], paid=Sum(item["amount"]))

    @router.view(EXPENSE, into=CARD)
    def card(item):
        yield Row(payer=item["payer"])

    @router.view(EXPENSE, into=TAG)
    def tags(item):
        for number in range(*item.get("tags", (0, 0))):
            yield Row(tag=item.get("tag", "travelling"), n=number, uses=Count())

    @router.index(EXPENSE, into=PAPER)
    def papers(item):
        for number in range(item.get("papers", 0)):
            yield Row(page=number, text=item["letter"] * item["letters"])

    @router.on(SESSION, into=SEEN)
    def seen(change):
        if change.event != "REMOVE":
            yield Put(day=change.new["day"])

    @router.on(SESSION, into=SIGN_INS)
    def sign_ins(change):
        if change.event == "MODIFY" and change.new["day"] == "broken":
            raise ValueError("no day")
        yield Add(day=(change.new or change.old)["day"], sign_ins=1)

    return App("shop", routers=[router])


class Store:
    """The embedded engine, in whose way ``trouble(writes, go)`` may stand; remembers what it was sent."""

    def __init__(self, engine):
        self.engine = engine
        self.sent = []
        self.removals = []
        self.trouble = None
        self.trouble_removing = None
        self.trouble_putting = None
        self.trouble_reading = None

    def transact(self, writes, expires_at):
        if type(writes[0]) is SwapMarker:  # as for the manifest
            return self.engine.transact(writes, expires_at)
        self.sent.append(writes)

        def go():
            return self.engine.transact(writes, expires_at)

        return self.trouble(writes, go) if self.trouble else go()

    def remove_empty(self, rows):
        self.removals.append(rows)
        if self.trouble_removing:
            raise self.trouble_removing
        return self.engine.remove_empty(rows)

    def insert_rows(self, rows):
        return self.trouble_putting(rows) if self.trouble_putting else self.engine.insert_rows(rows)

    def read_state(self, keys, **how):
        """The trouble is with all but the manifest, without which no batch is begun."""
        keys = list(keys)
        if self.trouble_reading and not any(key.pk.startswith("manifest#") for key in keys):
            raise self.trouble_reading
        return self.engine.read_state(keys, **how)

    def __getattr__(self, name):
        return getattr(self.engine, name)


class Setting:
    """An application on a store, and the source that feeds it."""

    def __init__(self, app, engine, **source):
        self.app = app
        self.store = Store(engine)
        self.source = Source(**source)
        self.records = []
        self.pauses = []

    def expense(self, number, group="a", amount=1, payer="p", **more):
        return self._note(self.source.put(f"EXPENSE#{number}", group=group, amount=amount, payer=payer, **more))

    def no_expense(self, number):
        return self._note(self.source.remove(f"EXPENSE#{number}"))

    def session(self, name, day):
        return self._note(self.source.put(f"SESSION#{name}", day=day))

    def deliver(self, *records, trouble=None, actions=25, **run):
        """Processes the records as one batch, and returns (handler, item) of what failed, once each."""
        self.store.trouble = trouble
        self.store.sent.clear()
        self.store.removals.clear()
        self.pauses.clear()
        pace = SendingPace()
        pace.ended(again=False)  # the process has no reason to think that the batch came before
        run = Runtime(
            self.app,
            self.store,
            Settings(chunk_actions=actions),
            clock=lambda: CLOCK,
            pause=self.pauses.append,
            pace=pace,
            **run,
        )
        with patch("random.random", return_value=0.5):  # pauses of the same length at every run
            self.report = process_event(run, list(records))
        self.store.trouble = None
        return sorted({(failure.handler, failure.item.split(" / ")[0]) for failure in self.report.failures})

    def errors(self):
        return {type(failure.error) for failure in self.report.failures}

    def row(self, partition, sort="TOTAL"):
        items = self.store.items(self.app.tables["main"], partition)
        found = [{name: decode(value) for name, value in item.items()} for item in items]
        return next((row for row in found if row["SK"] == sort), None)

    def ledger(self, number):
        key = ledger_key(self.app.name, "main", ("main", f"EXPENSE#{number}", "METADATA"))
        return self.store.read_state([key])[key]

    def large(self):
        return [item for item in self.store.state_items() if decode(item["pk"]).startswith("part#")]

    def holds_what_the_records_say(self):
        return stored(self.app, self.store) == model(self.app, self.records)

    def _note(self, record):
        self.records.append(record)
        return record


def touches(writes, *key):
    return any(write.key == ("main", *key) for write in writes)


def touches_papers(writes):
    return any(str(write.key[1]).startswith("PAPER#") for write in writes)


def pages_lost_after(count):
    """Refuses to answer from this page on."""
    left = [count]

    def trouble(writes, go):
        left[0] -= touches_papers(writes)
        if touches_papers(writes) and left[0] < 0:
            raise EngineUnavailable("no answer")
        return go()

    return trouble


def always(code, *key, whole=False):
    """Refuses what touches this row, with a reason at that row or, as DynamoDB does at times, for the whole call."""

    def trouble(writes, go):
        if not touches(writes, *key):
            return go()
        reasons = tuple(Reason(code) if whole or write.key == ("main", *key) else None for write in writes)
        return Refused(reasons)

    return trouble


def times(count, code):
    """Refuses the first so many calls as a whole."""
    left = [count]

    def trouble(writes, go):
        left[0] -= 1
        return Refused((Reason(code),) * len(writes)) if left[0] >= 0 else go()

    return trouble


EVERY_HANDLER = ("card", "group_total", "papers", "payer_total", "tags")


def all_of(*items):
    return sorted((handler, item) for item in items for handler in EVERY_HANDLER)


def only_the_first_reason(writes, go):
    refused = go()
    if refused is None:
        return None
    first = next(place for place, reason in enumerate(refused.reasons) if reason)
    return Refused(tuple(reason if place == first else None for place, reason in enumerate(refused.reasons)))


def without_items(writes, go):
    refused = go()
    return refused and Refused(tuple(reason and reason._replace(item=None) for reason in refused.reasons))


def guards(write, numbers):
    items = tuple(f"#S#EXPENSE#{number}" for number in numbers)
    return isinstance(write, LedgerWrite) and write.key.pk.endswith(items)


def unavailable(*arguments, **more):
    raise EngineUnavailable("no answer")


def contested_app():
    orders, tickets = Key("ORDER#{number}", "METADATA"), Key("TICKET#{number}", "METADATA")
    router = Router()

    @router.index(orders, tickets, into=Key("BY#{number}", "ROW"))
    def by_number(item):
        yield Row(name=item["name"])

    @router.on(orders, tickets, into=Key("LAST#{number}", "ROW"))
    def last(change):
        yield Put(name=change.new["name"]) if change.new else Delete()

    @router.view(orders, tickets, into=Key("NAMES#{name}", "TOTAL"))
    def names(item):
        yield Row(name=item["name"], items=Count())

    return App("multi_source", routers=[router])


def put_or_added_app():
    router = Router()

    @router.on(SESSION, into=SEEN)
    def seen(change):
        match change.new.get("day"):
            case "added":
                yield Add(times=1)
            case None:
                yield Delete()
            case day:
                yield Put(day=day)

    @router.on(SESSION, into=SIGN_INS)
    def sign_ins(change):
        yield Add(day="all", changes=1)

    return App("shop", routers=[router])


def part_time_app(retired=()):
    router = Router()

    @router.view(EXPENSE, into=GROUP)
    def first(item):
        if item["first"]:
            yield Row(group="first", expenses=Count())

    retiring = Router()

    @retiring.view(EXPENSE, into=PAYER)
    def second(item):
        if item["second"] == "raises":
            raise ValueError("second raises")
        if item["second"]:
            yield Row(payer="second", expenses=Count())

    return App("shop", routers=[router] if retired else [router, retiring], retired=retired)


def overtaken(at, turn, batch):
    """Before its nth transaction the invocation is overtaken by another on the same store."""

    def trouble(writes, go):
        if len(at.store.sent) == turn:
            report = process_event(Runtime(at.app, at.store.engine, Settings()), list(batch))
            assert report.failures == []
        return go()

    return trouble


class CommitContract:
    """Wants fixtures ``at``, a ``Setting`` of ``make_app``, and ``setting``, which makes one of another application."""

    # Conflicts and throttling

    @pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
    def test_conflict_that_passes_is_met_with_the_same_plan_after_growing_pauses(self, at, code):
        batch = [at.expense(number) for number in range(3)]
        assert at.deliver(*batch, trouble=times(4, code)) == []
        assert at.store.sent == [at.store.sent[0]] * (1 + 4)
        assert len(at.pauses) == 4
        assert at.pauses[0] < at.pauses[2]
        assert at.holds_what_the_records_say()

    def test_throttling_pauses_longer_than_a_conflict(self, at):
        record = at.expense(1)
        at.deliver(record, trouble=times(4, "TransactionConflict"))
        conflict = sum(at.pauses)
        at.deliver(at.expense(2), trouble=times(4, "ThrottlingError"))
        assert sum(at.pauses) > conflict

    def test_row_in_conflict_to_the_end_fails_only_the_handler_that_writes_it(self, at):
        batch = [at.expense(number, "hot" if number == 7 else f"g{number}", payer=f"p{number}") for number in range(20)]
        trouble = always("TransactionConflict", "GROUP#hot", "TOTAL")
        assert at.deliver(*batch, trouble=trouble) == [("group_total", "EXPENSE#7")]
        assert at.row("PAYER#p7")["paid"] == 1
        assert at.row("GROUP#g8")["expenses"] == 1
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    @pytest.mark.parametrize("code", ["ThrottlingError", "ProvisionedThroughputExceeded"])
    def test_store_that_stays_throttled_is_sent_nothing_more_of_the_batch(self, at, code):
        batch = [at.expense(number, f"g{number}", payer=f"p{number}") for number in range(20)]
        assert at.deliver(*batch, trouble=times(99, code)) == all_of(*(f"EXPENSE#{number}" for number in range(20)))
        assert len(at.store.sent) == 1 + 4
        assert at.errors() == {TableThrottled}
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    @pytest.mark.parametrize("code", ["ThrottlingError", "ProvisionedThroughputExceeded"])
    def test_row_throttled_to_the_end_fails_only_the_handler_that_writes_it(self, at, code):
        batch = [at.expense(number, "hot" if number % 7 == 0 else f"g{number}", payer="p") for number in range(20)]
        hot = [("group_total", f"EXPENSE#{number}") for number in (0, 14, 7)]
        assert at.deliver(*batch, trouble=always(code, "GROUP#hot", "TOTAL")) == sorted(hot)
        assert at.errors() == {TableThrottled}
        assert at.row("PAYER#p")["paid"] == 20
        assert len([writes for writes in at.store.sent if touches(writes, "GROUP#hot", "TOTAL")]) <= 1 + 4
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    def test_units_of_a_throttled_row_wait_behind_the_others(self, at):
        batch = [at.expense(number, "hot" if number == 0 else f"g{number}", payer=f"p{number}") for number in range(20)]
        left = [2]

        def trouble(writes, go):
            left[0] -= (is_hot := touches(writes, "GROUP#hot", "TOTAL"))
            throttled = is_hot and left[0] >= 0
            at_row = [Reason("ThrottlingError") if write.key[1] == "GROUP#hot" else None for write in writes]
            return Refused(tuple(at_row)) if throttled else go()

        assert at.deliver(*batch, trouble=trouble) == []
        assert [touches(writes, "GROUP#hot", "TOTAL") for writes in at.store.sent][-2:] == [True, True]
        assert at.holds_what_the_records_say()

    def test_table_that_is_throttled_at_another_row_each_time_is_sent_a_bounded_number_of_transactions(self, at):
        batch = [at.expense(number, f"g{number}", payer=f"p{number}") for number in range(40)]

        def trouble(writes, go):
            last = len(writes) - 1
            return Refused(tuple(Reason("ThrottlingError") if place == last else None for place in range(len(writes))))

        assert at.deliver(*batch, trouble=trouble) == all_of(*(f"EXPENSE#{number}" for number in range(40)))
        assert len(at.store.sent) <= 2 * HOT_ROWS_MAX + 4
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    def test_row_in_conflict_to_the_end_is_tried_a_bounded_number_of_times(self, at):
        batch = [at.expense(number, "hot" if number % 2 else "cold", payer=f"p{number}") for number in range(20)]
        at.deliver(*batch, trouble=always("TransactionConflict", "GROUP#hot", "TOTAL"))
        tries = Tally(
            writes for sent in at.store.sent for writes in [repr(sent)] if touches(sent, "GROUP#hot", "TOTAL")
        )
        assert max(tries.values()) <= 1 + 4
        assert sum(at.pauses) < 10

    def test_pauses_end_when_the_time_does(self, at):
        batch = [at.expense(number, "hot") for number in range(3)]
        trouble = always("ThrottlingError", "GROUP#hot", "TOTAL")
        at.deliver(*batch, trouble=trouble, seconds_left=lambda: 13 - sum(at.pauses))
        assert at.errors() == {NotStarted}
        assert sum(at.pauses) < 1  # the second that was left

    # Permanent refusals

    @pytest.mark.parametrize("whole", [True, False], ids=["whole call", "reason at the row"])
    def test_permanent_refusal_fails_only_the_handler_that_writes_the_row(self, at, whole):
        batch = [at.expense(number, "bad" if number == 7 else f"g{number}", payer=f"p{number}") for number in range(20)]
        assert at.deliver(*batch, trouble=always(VALIDATION, "GROUP#bad", "TOTAL", whole=whole)) == [
            ("group_total", "EXPENSE#7")
        ]
        assert at.row("PAYER#p7")["paid"] == 1
        assert at.row("CARD#7", "CARD")["payer"] == "p7"
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    def test_reason_at_one_row_leaves_the_others_in_their_transaction(self, at):
        batch = [at.expense(number, "bad" if number == 3 else "a") for number in range(5)]
        at.deliver(*batch, trouble=always(VALIDATION, "GROUP#bad", "TOTAL"))
        guilty = [writes for writes in at.store.sent if touches(writes, "GROUP#bad", "TOTAL")]
        assert len(at.store.sent) - len(guilty) <= 2 + 5  # those before and behind it, then its other handlers

    def test_every_writer_of_a_row_that_holds_text_fails_and_nobody_else(self, at):
        at.deliver(at.expense(9, "z"))  # the first batch of a state is refused beside rows
        at.store.transact([PutRow(("main", "GROUP#a", "TOTAL"), {"total": "text", "_sf_n": 1})], 0)
        batch = [at.expense(number, "ab"[number % 2], payer=f"p{number}") for number in range(6)]
        assert at.deliver(*batch) == [("group_total", f"EXPENSE#{number}") for number in (0, 2, 4)]
        assert at.row("GROUP#b")["expenses"] == 3
        assert [at.row(f"PAYER#p{number}")["paid"] for number in range(6)] == [1] * 6
        assert str(at.report.failures[0].error).startswith("The store refused the write with Validation")

    def test_sum_of_more_than_38_digits_fails_only_its_item(self, at):
        large = int("9" * 38)
        at.deliver(at.expense(1, "a", large, "p1"))
        batch = [at.expense(2, "a", large, "p2"), at.expense(3, "b", 1, "p3"), at.expense(4, "a", -5, "p4")]
        assert at.deliver(*batch) == [("group_total", "EXPENSE#2")]
        assert at.row("GROUP#a")["total"] == large - 5
        assert at.row("PAYER#p2")["paid"] == large

    def test_difference_of_more_than_38_digits_fails_only_its_item(self, at):
        at.deliver(at.expense(1, "a", -int("9" * 38), "p1"), at.expense(2, "a"))
        failed = at.deliver(at.expense(1, "a", int("9" * 38), "p1"), at.expense(2, "b"))
        assert failed == [("group_total", "EXPENSE#1"), ("payer_total", "EXPENSE#1")]
        assert at.row("GROUP#b")["expenses"] == 1

    def test_decimal_difference_of_more_than_38_digits_fails_only_its_item(self, at):
        at.deliver(at.expense(1, "a", Decimal("1E+30"), "p1"), at.expense(2, "a"))
        failed = at.deliver(at.expense(1, "a", Decimal("1E-30"), "p1"), at.expense(2, "b"))
        assert failed == [("group_total", "EXPENSE#1"), ("payer_total", "EXPENSE#1")]
        assert at.row("GROUP#b")["expenses"] == 1

    def test_decimal_difference_found_when_planning_again_fails_only_its_item(self, at):
        first = [at.expense(1, "a", Decimal("1E+30"), "p1"), at.expense(2, "a")]
        at.deliver(*first)
        at.expense(1, "a", 5, "p1")  # never delivered
        failed = at.deliver(at.expense(1, "a", Decimal("1E-30"), "p1"), at.expense(2, "b"))
        assert failed == [("group_total", "EXPENSE#1"), ("payer_total", "EXPENSE#1")]
        assert at.row("GROUP#b")["expenses"] == 1

    # Conditions

    @pytest.mark.parametrize("trouble", [None, only_the_first_reason, without_items])
    def test_batch_that_comes_again_is_done_whatever_the_refusals_tell(self, at, trouble):
        batch = [at.expense(number, f"g{number % 3}") for number in range(30)] + [at.session("s", "mon")]
        at.deliver(*batch)
        before = list(at.store.items(at.app.tables["main"]))
        assert at.deliver(*batch, trouble=trouble) == []
        assert list(at.store.items(at.app.tables["main"])) == before
        assert at.report.known == 31  # that an audit row is simply written again makes no record new

    @pytest.mark.parametrize("trouble", [None, only_the_first_reason, without_items])
    def test_stale_guess_is_planned_again_whatever_the_refusals_tell(self, at, trouble):
        at.deliver(*[at.expense(number, f"g{number % 3}") for number in range(30)])
        for number in range(30):
            at.expense(number, "never delivered")
        assert at.deliver(*[at.expense(number, "last", 2) for number in range(30)], trouble=trouble) == []
        assert at.holds_what_the_records_say()

    def test_ledger_that_others_keep_moving_is_tried_eight_times_and_takes_nobody_along(self, at):
        batch = [at.expense(number) for number in range(10)]

        def trouble(writes, go):
            moved = range(10) if len(at.store.sent) == 1 else [3]
            reasons = [Reason(CONDITION) if guards(write, moved) else None for write in writes]
            return Refused(tuple(reasons)) if any(reasons) else go()

        assert at.deliver(*batch, trouble=trouble, actions=100) == all_of("EXPENSE#3")
        assert sum(any(guards(write, [3]) for write in writes) for writes in at.store.sent) == 1 + 8
        assert at.row("GROUP#a")["expenses"] == 9

    def test_condition_beside_a_conflict_decides_first(self, at):
        record = at.expense(1)
        at.deliver(record)

        def trouble(writes, go):
            refused = go()
            return refused and Refused((*refused.reasons[:1], *[Reason("TransactionConflict")] * (len(writes) - 1)))

        assert at.deliver(record, trouble=trouble) == []
        assert at.pauses == []

    def test_one_refused_transaction_is_enough_to_read_the_rest_of_the_batch(self, at):
        batch = [at.expense(number, f"g{number}", payer=f"p{number}") for number in range(30)]
        at.deliver(*batch)
        at.deliver(*batch)
        assert len(at.store.sent) == 1

    # Lost answers

    @pytest.mark.parametrize("applied", [True, False])
    def test_answer_that_is_lost_reports_its_items_and_counts_them_once(self, at, applied):
        batch = [at.expense(number, f"g{number}", payer=f"p{number}") for number in range(30)]
        lost = []

        def trouble(writes, go):
            if len(at.store.sent) == 2:
                lost.extend(write.key.pk.rpartition("#S#")[2] for write in writes if isinstance(write, LedgerWrite))
                if applied:
                    go()
                raise EngineUnavailable("no answer")
            return go()

        assert at.deliver(*batch, trouble=trouble) == all_of(*lost)
        assert lost
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    def test_own_write_that_landed_before_its_refusal_counts_as_done(self, at):
        def sent_twice(writes, go):
            go()
            return go()

        assert at.deliver(at.expense(1), at.session("s", "mon"), trouble=sent_twice) == []
        assert at.holds_what_the_records_say()

    def test_rest_of_a_batch_that_cannot_be_read_is_reported_and_nothing_else(self, at):
        batch = [at.expense(number, f"g{number}", payer=f"p{number}") for number in range(30)]
        at.deliver(*batch)
        at.store.trouble_reading = EngineUnavailable("no answer")
        failed = at.deliver(*batch)
        assert len(at.store.sent) == 1
        decided = {write.key.pk.rpartition("#S#")[2] for write in at.store.sent[0] if isinstance(write, LedgerWrite)}
        assert failed == sorted(all_of(*{f"EXPENSE#{number}" for number in range(30)} - decided))

    # Time

    def test_transactions_that_time_does_not_allow_are_not_begun_and_reported(self, at):
        batch = [at.expense(number, f"g{number}", payer=f"p{number}") for number in range(30)]

        assert at.deliver(*batch, seconds_left=lambda: 100 if len(at.store.sent) < 2 else 1)
        assert len(at.store.sent) == 2
        assert at.errors() == {NotStarted}
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    def test_rows_that_time_does_not_allow_to_remove_are_reported_and_go_when_their_records_come_again(self, at):
        at.deliver(at.expense(1, "a"), at.expense(2, "b", payer="q"))
        gone = [at.no_expense(1), at.no_expense(2)]
        failed = at.deliver(*gone, actions=5, seconds_left=lambda: 1 if at.store.sent else 100)
        assert (len(at.store.sent), at.store.removals) == (1, [])
        assert {item for _, item in failed} == {"EXPENSE#1", "EXPENSE#2"}
        assert at.deliver(*gone) == []
        assert (at.row("GROUP#a"), at.row("GROUP#b")) == (None, None)

    def test_audit_rows_that_time_does_not_allow_are_reported(self, at):
        record = at.session("s", "mon")
        assert ("audit", "SESSION#s") in at.deliver(record, seconds_left=lambda: 1 if at.store.sent else 100)
        assert at.deliver(record) == []
        assert at.holds_what_the_records_say()

    # Claims: what came too late, and what is held

    def test_put_that_is_older_than_its_row_is_dropped_and_the_rest_is_written(self, at):
        first = at.session("s", "mon")
        second = at.session("s", "tue")
        assert at.deliver(second) == []
        assert at.deliver(first) == []
        assert at.row("SEEN#s", "LAST")["day"] == "tue"
        assert at.row("SIGNINS#mon")["sign_ins"] == 1
        assert at.holds_what_the_records_say()

    def test_put_that_is_older_than_its_row_leaves_other_items_in_its_transaction_alone(self, at):
        first, second = at.session("s", "mon"), at.session("s", "tue")
        at.deliver(second)
        others = [at.session(f"t{number}", "wed") for number in range(5)]
        assert at.deliver(first, *others) == []
        assert at.holds_what_the_records_say()

    def test_changes_behind_a_failed_one_of_the_same_item_are_held_for_that_handler(self, at):
        batch = [at.session("s", day) for day in ("mon", "tue", "wed")] + [at.session("t", "mon")]
        failed = at.deliver(*batch, trouble=always(VALIDATION, "SIGNINS#tue", "TOTAL"))
        assert failed == [("sign_ins", "SESSION#s")]
        assert [failure.sequence for failure in at.report.failures] == [
            record["dynamodb"]["SequenceNumber"] for record in batch[1:3]
        ]
        assert [type(failure.error) for failure in at.report.failures] == [HandlerError, Held]
        assert at.row("SIGNINS#mon")["sign_ins"] == 2
        assert at.row("SIGNINS#wed") is None
        assert at.row("SEEN#s", "LAST")["day"] == "wed"
        assert at.deliver(*batch[1:]) == []
        assert at.holds_what_the_records_say()

    @pytest.mark.parametrize("actions", [2, 3, 4, 7, 25])
    def test_changes_are_held_behind_a_lost_answer_in_whatever_transaction_they_are(self, at, actions):
        batch = [at.session("s", f"d{number}") for number in range(6)]

        def trouble(writes, go):
            if touches(writes, "SIGNINS#d2", "TOTAL"):
                raise EngineUnavailable("no answer")
            return go()

        at.deliver(*batch, trouble=trouble, actions=actions)
        failed = [int(failure.sequence) for failure in at.report.failures if failure.handler == "sign_ins"]
        numbers = [int(record["dynamodb"]["SequenceNumber"]) for record in batch]
        assert set(numbers[2:]) <= set(failed)
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    # Rows with an owner

    def test_row_of_another_item_fails_only_the_handler_that_wants_it(self, setting):
        at = setting(contested_app())
        order, ticket = at.source.put("ORDER#1", name="a"), at.source.put("TICKET#1", name="b")
        other = at.source.put("TICKET#2", name="c")
        at.deliver(order)
        assert at.deliver(ticket, other) == [("by_number", "TICKET#1"), ("last", "TICKET#1")]
        assert all("ORDER#1|METADATA: a row with" in str(failure.error) for failure in at.report.failures)
        assert (at.row("BY#1", "ROW")["name"], at.row("BY#2", "ROW")["name"]) == ("a", "c")
        assert at.row("NAMES#b")["items"] == 1

    def test_row_is_handed_over_once_its_owner_has_left(self, setting):
        at = setting(contested_app())
        order, ticket = at.source.put("ORDER#1", name="a"), at.source.put("TICKET#1", name="b")
        at.deliver(order)
        at.deliver(ticket)
        assert at.deliver(at.source.remove("ORDER#1")) == []
        assert at.deliver(ticket) == [("last", "TICKET#1")]  # a tombstone keeps its owner
        assert at.row("BY#1", "ROW")["name"] == "b"

    @pytest.mark.parametrize("turned", [False, True])
    def test_row_that_changes_hands_in_a_batch_does_so_in_whatever_order_its_records_come(self, setting, turned):
        at = setting(contested_app())
        at.deliver(at.source.put("ORDER#1", name="a"))
        batch = [at.source.put("TICKET#1", name="b"), at.source.remove("ORDER#1")]
        assert at.deliver(*(reversed(batch) if turned else batch)) == [("last", "TICKET#1")]  # a tombstone has an owner
        assert at.row("BY#1", "ROW")["name"] == "b"

    def test_row_that_nobody_gives_up_is_tried_again_while_others_of_the_batch_get_through(self, setting):
        at = setting(contested_app())
        at.deliver(*(at.source.put(f"ORDER#{number}", name="a") for number in range(3)))
        tickets = [at.source.put(f"TICKET#{number}", name="b") for number in range(3)]
        assert {handler for handler, _ in at.deliver(*tickets)} == {"by_number", "last"}
        assert at.errors() == {RowTaken, Held} or at.errors() == {RowTaken}
        assert len(at.store.sent) < 40

    def test_guarded_row_of_which_a_refusal_does_not_tell_the_owner_is_not_taken_for_a_newer_one(self, setting):
        at = setting(contested_app())
        at.deliver(at.source.put("ORDER#1", name="a"))
        ticket = at.source.put("TICKET#1", name="b")
        assert ("last", "TICKET#1") in at.deliver(ticket, trouble=without_items)
        assert "belongs to another item" in str(at.report.failures[0].error)

    # Rows that are put or added to

    @pytest.mark.parametrize(
        ("first", "then", "why"),
        [
            ("d1", "added", "adds to row SEEN#1 / LAST, which was put or deleted before"),
            (None, "added", "adds to row SEEN#1 / LAST, which was put or deleted before"),
            ("added", "d1", "puts or deletes row SEEN#1 / LAST, which was added to before"),
            ("added", None, "puts or deletes row SEEN#1 / LAST, which was added to before"),
        ],
    )
    def test_row_that_is_put_and_added_to_fails_only_the_change_that_mixes_them(self, setting, first, then, why):
        at = setting(put_or_added_app())
        at.deliver(at.session(1, first))
        row = at.row("SEEN#1", "LAST")
        batch = [at.session(1, then), at.session(2, "d1"), at.session(3, "added"), at.session(3, "added")]
        assert at.deliver(*batch) == [("seen", "SESSION#1")]
        assert (at.errors(), why in str(at.report.failures[0].error)) == ({HandlerError}, True)
        assert len(at.store.sent) <= 4  # refused once, not round after round
        assert at.row("SEEN#1", "LAST") == row
        assert (at.row("SEEN#2", "LAST")["day"], at.row("SEEN#3", "LAST")["times"]) == ("d1", 2)
        assert at.row("SIGNINS#all")["changes"] == 5

    def test_row_that_is_put_and_added_to_in_one_batch_fails_what_comes_second(self, setting):
        at = setting(put_or_added_app())
        batch = [at.session(1, "d1"), at.session(1, "added"), at.session(1, "d2")]
        assert at.deliver(*batch) == [("seen", "SESSION#1")]
        assert [type(failure.error) for failure in at.report.failures] == [HandlerError, Held]
        assert at.row("SEEN#1", "LAST")["day"] == "d1"

    # Steps larger than a transaction

    def test_item_that_moves_between_99_rows_and_99_others_goes_page_by_page(self, at):
        at.deliver(at.expense(1, tags=(0, 99)), at.expense(2, tags=(50, 60)))
        assert at.deliver(at.expense(1, tags=(100, 199)), at.expense(2, "b")) == []
        assert max(map(len, at.store.sent)) <= 100
        assert at.holds_what_the_records_say()

    @pytest.mark.slow
    @pytest.mark.parametrize("survivors", range(5))
    @pytest.mark.parametrize("applied", [True, False])
    def test_page_that_is_lost_is_taken_up_again_where_it_stopped(self, at, survivors, applied):
        at.deliver(at.expense(1, tags=(0, 99)))
        move = at.expense(1, tags=(100, 199))

        def trouble(writes, go):
            if len(at.store.sent) > survivors:
                if applied:
                    go()
                raise EngineUnavailable("no answer")
            return go()

        at.deliver(move, trouble=trouble)
        assert at.deliver(move) == []
        assert at.holds_what_the_records_say()

    def test_pages_met_by_a_newer_change_are_taken_up_from_what_they_wrote(self, at):
        at.deliver(at.expense(1, tags=(0, 99)))
        moved = at.expense(1, tags=(100, 199))
        newest = at.expense(1, "b", tags=(50, 149))

        def trouble(writes, go):
            if len(at.store.sent) == 2:
                raise EngineUnavailable("no answer")
            return go()

        at.deliver(moved, trouble=trouble)
        assert at.deliver(newest) == []
        assert at.deliver(moved, newest) == []
        assert at.holds_what_the_records_say()

    @pytest.mark.slow
    @pytest.mark.parametrize(("letter", "letters"), [("x", 380_000), ("\U0001f600", 95_000)], ids=["short", "long"])
    def test_rows_of_more_than_4_megabytes_go_page_by_page(self, at, letter, letters):
        many = {"letter": letter, "letters": letters}
        assert at.deliver(at.expense(1, papers=25, **many), at.expense(2)) == []
        assert len([sent for sent in at.store.sent if touches_papers(sent)]) >= 3
        assert at.holds_what_the_records_say()
        assert at.deliver(at.expense(1, papers=3, **many), at.expense(2, "b")) == []
        assert at.deliver(at.expense(1, papers=12, **many)) == []
        assert at.holds_what_the_records_say()

    @pytest.mark.slow
    @pytest.mark.parametrize("survivors", range(3))
    def test_page_of_large_rows_that_is_lost_is_taken_up_again(self, at, survivors):
        record = at.expense(1, papers=25, letter="x", letters=380_000)
        assert ("papers", "EXPENSE#1") in at.deliver(record, trouble=pages_lost_after(survivors))
        assert at.deliver(record) == []
        assert at.holds_what_the_records_say()

    def test_rows_of_just_less_than_4_megabytes_go_in_one_transaction(self, at):
        assert at.deliver(at.expense(1, papers=8, letter="x", letters=380_000)) == []
        assert len([sent for sent in at.store.sent if touches_papers(sent)]) == 1

    def test_failure_of_a_large_step_leaves_the_item_s_other_handlers_alone(self, at):
        at.deliver(at.expense(1, tags=(0, 99)))
        move = at.expense(1, "b", tags=(100, 199))
        assert at.deliver(move, trouble=always(VALIDATION, "TAG#travelling", "000150")) == [("tags", "EXPENSE#1")]
        assert at.row("GROUP#b")["expenses"] == 1
        assert at.deliver(move) == []
        assert at.holds_what_the_records_say()

    # Contributions in items of their own

    def test_large_contribution_has_an_item_of_its_own_until_it_is_small_again(self, at):
        at.deliver(at.expense(1, tags=(0, 99)))
        assert len(at.large()) == 1
        assert at.ledger(1)["tags.s"].startswith("@")
        assert at.deliver(at.expense(1, tags=(0, 98))) == []
        assert len(at.large()) == 1
        assert at.deliver(at.expense(1, tags=(0, 5))) == []
        assert at.large() == []
        assert at.deliver(at.expense(1, tags=(0, 99)), at.expense(2)) == []
        assert at.deliver(at.no_expense(1)) == []
        assert at.large() == []
        assert at.holds_what_the_records_say()

    def test_large_contribution_is_read_when_it_is_not_what_was_assumed(self, at):
        at.deliver(at.expense(1, tags=(0, 99)))
        at.expense(1, tags=(200, 299))  # never delivered
        assert at.deliver(at.expense(1, tags=(50, 140))) == []
        assert at.holds_what_the_records_say()

    def test_large_contribution_that_comes_again_is_done(self, at):
        record = at.expense(1, tags=(0, 99))
        at.deliver(record)
        assert at.deliver(record) == []
        assert at.report.known == 1

    def test_large_contribution_that_changes_while_it_is_read_fails_its_item_only(self, at):
        large = {"tag": "x" * 500, "tags": (0, 10)}
        at.deliver(at.expense(1, **large))
        assert len(at.large()) == 1
        at.expense(1, "never delivered", **large)
        batch = [at.expense(1, "b", **large), at.expense(2), at.expense(3, "b")]
        read = at.store.engine.read_state

        def read_state(keys, **how):
            return {key: item | {"s": "[]"} if "s" in item else item for key, item in read(keys, **how).items()}

        at.store.read_state = read_state
        assert at.deliver(*batch) == all_of("EXPENSE#1")
        assert len(at.store.sent[0]) > len(at.store.sent[1]) > 1  # they were in one transaction
        assert at.row("GROUP#b")["expenses"] == 1
        del at.store.read_state
        assert at.deliver(*batch) == []
        assert at.holds_what_the_records_say()

    # Time to live of ledger items

    def test_ledger_item_expires_only_when_no_handler_holds_anything(self, at):
        batch = [at.expense(1, ""), at.expense(2)]
        at.deliver(*batch)
        assert "ttl" not in at.ledger(1)
        at.deliver(at.no_expense(1))
        assert at.ledger(1)["ttl"] == EXPIRES
        at.deliver(at.expense(1))
        assert "ttl" not in at.ledger(1)

    def test_handler_that_was_not_planned_keeps_the_ledger_item_from_expiring(self, at):
        at.deliver(at.expense(1, "a"))
        removal = at.no_expense(1)
        assert at.deliver(removal, trouble=always(VALIDATION, "GROUP#a", "TOTAL")) == [("group_total", "EXPENSE#1")]
        assert "ttl" not in at.ledger(1)
        assert at.ledger(1)["live"] == 1
        assert at.deliver(removal) == []
        assert at.ledger(1)["ttl"] == EXPIRES
        assert at.row("GROUP#a") is None

    def test_handler_that_raised_keeps_the_ledger_item_from_expiring(self, setting):
        at = setting(part_time_app())
        at.deliver(at.source.put("EXPENSE#1", first=1, second=1))
        change = at.source.put("EXPENSE#1", first=0, second="raises")
        assert at.deliver(change) == [("second", "EXPENSE#1")]
        assert at.row("GROUP#first") is None
        assert "ttl" not in at.ledger(1)
        at.deliver(at.source.put("EXPENSE#1", first=0, second=0))
        assert at.row("PAYER#second") is None
        assert at.ledger(1)["ttl"] == EXPIRES

    def test_part_of_a_retired_handler_goes_with_the_last_other_of_its_item(self, setting):
        at = setting(part_time_app())
        at.deliver(at.source.put("EXPENSE#1", first=1, second=1))
        at.app = part_time_app(retired=["second"])
        assert at.deliver(at.source.put("EXPENSE#1", first=2, second=1)) == []
        assert (at.ledger(1)["live"], "ttl" in at.ledger(1)) == (2, False)
        assert at.deliver(at.source.remove("EXPENSE#1")) == []
        assert (at.ledger(1)["live"], at.ledger(1)["ttl"]) == (0, EXPIRES)
        assert at.row("GROUP#first") is None
        assert at.row("PAYER#second") is not None

    # Rows without contributors

    def test_rows_left_empty_by_a_crash_are_removed_when_the_batch_comes_again(self, at):
        at.deliver(at.expense(1, "a"), at.expense(2, "b"))
        batch = [at.no_expense(1), at.expense(2, "c")]
        at.store.trouble_removing = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            at.deliver(*batch)
        assert (at.row("GROUP#a")["expenses"], at.row("GROUP#b")["expenses"]) == (0, 0)
        at.store.trouble_removing = None
        assert at.deliver(*batch) == []
        assert (at.row("GROUP#a"), at.row("GROUP#b")) == (None, None)
        assert at.holds_what_the_records_say()

    def test_rows_left_empty_by_a_crash_are_removed_for_a_handler_that_is_done_beside_one_that_is_not(self, at):
        at.deliver(at.expense(1, "a", payer="p"))
        move = at.expense(1, "b", payer="q")
        at.store.trouble_removing = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            at.deliver(move, trouble=always(VALIDATION, "PAYER#q", "TOTAL"))
        assert at.row("GROUP#a")["expenses"] == 0
        at.store.trouble_removing = None
        assert at.deliver(move) == []
        assert at.row("GROUP#a") is None
        assert at.holds_what_the_records_say()

    def test_rows_left_empty_by_a_crash_are_removed_when_the_batch_comes_again_with_a_newer_change(self, at):
        at.deliver(at.expense(1, "a"))
        move = at.expense(1, "b")
        at.store.trouble_removing = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            at.deliver(move)
        at.store.trouble_removing = None
        assert at.deliver(move, at.expense(1, "c")) == []
        assert (at.row("GROUP#a"), at.row("GROUP#b")) == (None, None)

    def test_removal_whose_outcome_is_unknown_reports_the_items_that_left(self, at):
        at.deliver(at.expense(1, "a", payer="p1"), at.expense(2, "b", payer="p2"))
        batch = [at.expense(1, "c", payer="p1"), at.expense(2, "b", 5, payer="p2")]
        at.store.trouble_removing = EngineUnavailable("no answer")
        assert {item for _, item in at.deliver(*batch)} == {"EXPENSE#1"}
        at.store.trouble_removing = None
        assert at.deliver(*batch) == []
        assert at.row("GROUP#a") is None

    def test_rows_that_keep_a_contributor_of_the_batch_are_not_asked_to_go(self, at):
        at.deliver(at.expense(1, "a"), at.expense(2, "b"))
        at.deliver(at.expense(1, "b"), at.expense(2, "a"))
        assert at.store.removals == []

    # Rows put without condition

    def test_audit_rows_that_were_not_written_are_the_only_ones_reported(self, at):
        batch = [at.session("s", "mon"), at.session("t", "mon")]
        at.store.trouble_putting = lambda rows: Inserted([row.key for row in rows if "SESSION#t" in row.key[1]], [])
        assert at.deliver(*batch) == [("audit", "SESSION#t")]
        at.store.trouble_putting = None
        assert at.deliver(*batch) == []

    def test_the_reason_of_a_row_that_the_store_refuses_is_in_the_message(self, at):
        at.store.trouble_putting = lambda rows: Inserted([rows[0].key], [], {rows[0].key: "name not defined"})
        assert at.deliver(at.session("s", "mon")) == [("audit", "SESSION#s")]
        assert at.errors() == {HandlerError}
        assert "The store refuses the row: name not defined" in str(at.report.failures[0])

    def test_audit_rows_whose_outcome_is_unknown_are_all_reported(self, at):
        batch = [at.session("s", "mon"), at.session("t", "mon")]
        at.store.trouble_putting = unavailable
        assert at.deliver(*batch) == [("audit", "SESSION#s"), ("audit", "SESSION#t")]
        assert at.errors() == {EngineUnavailable}

    # Invocations beside each other

    @pytest.mark.parametrize("turn", [1, 2, 3, 5])
    def test_invocation_that_overtakes_another_on_the_same_records_changes_nothing_twice(self, at, turn):
        at.deliver(*[at.expense(number, f"g{number % 5}") for number in range(20)])
        batch = [at.expense(number, f"g{number % 4}", 2) for number in range(0, 20, 2)]
        batch += [at.no_expense(number) for number in range(1, 10, 2)]
        batch += [at.session(f"s{number}", "mon") for number in range(5)]
        assert at.deliver(*batch, trouble=overtaken(at, turn, batch), actions=10) == []
        assert at.holds_what_the_records_say()

    @pytest.mark.parametrize("turn", [1, 2, 3, 5])
    def test_invocation_that_overtakes_another_with_newer_changes_is_not_undone(self, at, turn):
        at.deliver(*[at.expense(number, f"g{number % 5}", tags=(0, 99)) for number in range(3)])
        batch = [at.expense(number, "older", tags=(100, 199)) for number in range(3)] + [at.session("s", "mon")]
        newer = [at.expense(0, "newer", tags=(50, 149)), at.no_expense(1), at.session("s", "tue")]
        assert at.deliver(*batch, trouble=overtaken(at, turn, batch + newer)) == []
        assert at.holds_what_the_records_say()

    @pytest.mark.parametrize("actions", [2, 3, 10, 100])
    def test_cut_of_the_transactions_makes_no_difference(self, at, actions):
        first = [at.expense(number, f"g{number % 5}", tags=(0, number)) for number in range(20)]
        first += [at.session(f"s{number % 3}", f"d{number}") for number in range(9)]
        then = [at.expense(number, f"g{number % 3}", 3, tags=(number, 40)) for number in range(0, 20, 2)]
        then += [at.no_expense(number) for number in range(1, 20, 2)]
        assert at.deliver(*first, actions=actions) == []
        assert at.deliver(*first[10:], *then, actions=actions) == []
        assert max(map(len, at.store.sent)) <= max(actions, 50)
        assert at.holds_what_the_records_say()

    # New images only

    def test_state_that_cannot_be_read_fails_only_the_handlers_that_need_it(self, setting):
        at = setting(make_app(), view="NEW_IMAGE")
        at.deliver(at.expense(1))
        at.store.trouble_reading = EngineUnavailable("no answer")
        failed = at.deliver(at.expense(1, "b"), at.expense(2), at.session("s", "mon"))
        assert failed == sorted([*all_of("EXPENSE#1"), ("audit", "SESSION#s")])  # an audit needs both images
        assert at.row("SEEN#s", "LAST")["day"] == "mon"
        assert at.row("GROUP#a")["expenses"] == 2

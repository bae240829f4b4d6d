"""A handler is taken out of a state: its rows exactly, its parts, and nothing of others."""

from collections import Counter
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from streamfold import App, Count, Key, Max, Router, Row, Sum, Top
from streamfold.batch.manifest import Manifest, read_manifest
from streamfold.batch.process import process_changes
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.errors import EngineUnavailable, ManifestError, SettingsError
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.state_keys import ledger_key
from streamfold.lifecycle import retire
from streamfold.lifecycle.retire import Retirement, check_retirable
from streamfold.proofs.oracle import folded_rows, stored_rows
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from streamfold.writes.guarded import DeleteState
from tests.helpers import backfill_histories
from tests.helpers.backfill_histories import History, _encoded, _key
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
HANDLERS = ("total", "best", "own", "name", "other", "beside", "large")
ALONE = ("best", "own", "name", "other", "large")
"""Handlers that add to no row of another."""


def total(item):
    return Row(group=item["group"], total=Sum(item["amount"]), items=Count())


def beside(item):
    return Row(group=item["group"], more=Sum(item["amount"]))


def best(item, item_id):
    return Row(group=item["group"], most=Max(item["amount"]), top=Top(2, item_id, by=item["amount"]))


def other(item):
    return Row(group=item["group"], total=Sum(item["amount"]))


def own(item):
    return Row(amount=item["amount"]) if item["amount"] > 1 else None


def name(item):
    return Row(name=item["name"], amount=item["amount"])


def large(item):
    return [Row(group=item["group"] + "x" * 60 + str(number), items=Count()) for number in range(40)]


VIEWS = {total: "GROUP", beside: "GROUP", best: "BEST", other: "OTHER", large: "LARGE"}


def application(*names, retired=()):
    """An application of some of these handlers; two of them add to the same rows."""
    router = Router()
    for function, prefix in VIEWS.items():
        if function.__name__ in names:
            group = "other" if function is other else "main"
            router.view(ITEM, into=Key(f"{prefix}#{{group}}", "TOTAL"), group=group)(function)
    if "own" in names:
        router.index(ITEM, into=Key("OWN#{item_id}", "OWN"))(own)
    if "name" in names:
        router.index(ITEM, into=Key("NAME#{name}", "NAME"), unique=True, by="amount")(name)
    return App("shop", routers=[router], retired=retired)


ALL = application(*HANDLERS)


class Retiring(History):
    """All handlers from the beginning; then one is switched off and retired beside the stream, twice."""

    def __init__(self, seed):
        super().__init__(seed)
        self.deployed, self.off = 0, False
        self.remove = Random(seed).random() < 0.7
        self.handler = Random(seed).choice(HANDLERS if self.remove else ALONE)
        self.rest = application(*(name for name in HANDLERS if name != self.handler))

    def _run(self, app, engine, settings):
        if self.off:
            settings = settings._replace(handlers_off=(self.handler,))
        return super()._run(app, engine, settings)

    def _pages(self):
        self.off = True
        for _ in range(2):
            while not self._retired():
                self.step()

    def _retired(self):
        made = Retirement(self._run(ALL, self.engine, Settings()), self.handler, remove=self.remove)
        try:
            for page in made.pages():
                for found in page:
                    self.depth += 1
                    try:
                        made.retire([found])
                    finally:
                        self.depth -= 1
                    if self.random.random() < 0.3:
                        self.step()
        except (Died, EngineUnavailable):
            return False
        return not made.report.kept

    def wrong(self):
        images = {_key(name): item(name, "METADATA", **image) for name, image in self.items.items() if image}
        expected = {
            key: row for key, row in stored_rows(ALL, _encoded(folded_rows(self.rest, images), ALL)).items() if row
        }
        shown = {key: row for key, row in stored_rows(ALL, self.engine.rows.items()).items() if row}
        if not self.remove:  # what is kept is as it was when the handler was switched off
            shown = {key: row for key, row in shown.items() if self.rest.derived(key)}
        return None if shown == expected else (shown, expected)


def check(histories, first, monkeypatch, *, deltas=False):
    monkeypatch.setattr(backfill_histories, "NEW", ALL)
    retired = Counter()
    for seed in range(first, first + histories):
        history = Retiring(seed)
        history.deltas = seed if deltas else None
        history.run()
        assert history.wrong() is None, f"seed {seed}, {history.handler}: {history.wrong()}"
        assert not history.pending(), f"seed {seed}, {history.handler}: {history.pending()}"
        check_state(history.engine, history.handler, remove=history.remove)
        retired[history.handler] += 1
    return retired


def check_state(engine, handler, *, remove):
    """Nothing of the handler is left, and every ledger item counts what it stores and expires if that is nothing."""
    for key, stored in engine.state.items():
        assert not (key.pk.startswith("part#") and key.sk.endswith(f"#{handler}")), key
        assert not (remove and key.pk.startswith(f"entries#shop#{handler}#")), key
        if key.pk.startswith("ledger#"):
            assert not any(name.startswith(f"{handler}.") for name in stored), key
            live = sum(bool(part.text) for part in LedgerItem.of(stored).contributions.values())
            assert stored.get("live", 0) == live, key
            assert ("ttl" in stored) == (live == 0), key


@pytest.mark.slow
def test_handlers_are_retired_beside_the_stream(monkeypatch):
    check(24, 0, monkeypatch)


@pytest.mark.slow
def test_handlers_whose_additions_wait_in_deltas_are_retired_beside_the_stream(monkeypatch):
    check(12, 0, monkeypatch, deltas=True)


@pytest.mark.ci
def test_two_hundred_handlers_are_retired_beside_the_stream(monkeypatch):
    assert check(200, 1_000, monkeypatch).keys() == set(HANDLERS)


@pytest.mark.ci
def test_a_hundred_handlers_whose_additions_wait_in_deltas_are_retired_beside_the_stream(monkeypatch):
    check(100, 2_000, monkeypatch, deltas=True)


@pytest.mark.nightly
def test_many_handlers_are_retired_beside_the_stream(monkeypatch):
    check(3_000, 10_000, monkeypatch)


def dropped_first(retirement, found):
    """Takes parts away whether or not their rows were taken back."""
    remove, retirement.remove = retirement.remove, False
    drop(retirement, found)
    retirement.remove = remove


def uncounted(retirement, stored):
    """Leaves the count of what is stored as it was."""
    return {**without(retirement, stored), "live": stored.get("live", 0)}


drop, without = Retirement._drop, Retirement._without
MUTANTS = {
    "what is stored is not counted": {"_without": uncounted},
    "nothing is taken back": {"_take_back": lambda *_: {}, "_drop": dropped_first},
}


@pytest.mark.ci
@pytest.mark.parametrize("name", MUTANTS)
def test_a_retirement_that_is_made_wrong_is_noticed(name, monkeypatch):
    for place, wrong in MUTANTS[name].items():
        monkeypatch.setattr(Retirement, place, wrong)
    with pytest.raises(AssertionError):
        check(200, 0, monkeypatch)


@pytest.fixture(params=["memory", "embedded"])
def engine(request):
    if request.param == "memory":
        return MemoryEngine(ALL.tables.values())
    return EmbeddedEngine(ALL.tables.values(), actions_max=2000)


def filled(engine, app=ALL, numbers=(1, 2, 3)):
    changes = [change(None, item(f"ITEM#{n}", group="x", amount=n, name="n"), n) for n in numbers]
    assert process_changes(run_of(app, engine), changes).failures == []


def run_of(app, engine, **settings):
    ticks = count(2_000_000_000.0, 0.1)  # as the pauses take no time
    return Runtime(app, engine, Settings(**settings), pause=lambda _: None, clock=lambda: next(ticks))


def retired(engine, handler, *, remove, app=ALL):
    made = Retirement(run_of(app, engine, handlers_off=(handler,)), handler, remove)
    for _ in made.go():
        pass
    return made.report


def rows(engine):
    return {key["PK"]["S"]: key for key in engine.items(ALL.tables["main"]) if key.get("_sf_n") != {"N": "0"}}


def ledgers(engine):
    return [item for item in engine.state_items() if item["pk"]["S"].startswith("ledger#")]


@pytest.mark.parametrize("handler", HANDLERS)
def test_rows_that_are_kept_stay_as_they_are_and_the_parts_go(engine, handler):
    filled(engine)
    before = rows(engine)
    report = retired(engine, handler, remove=False)
    assert (report.contributions, report.dropped, report.rows, report.kept) == (3, 3, 0, [])
    assert report.stored == (2 if handler == "own" else 3)
    assert rows(engine) == before
    assert not any(name.startswith(f"{handler}.") for stored in ledgers(engine) for name in stored)
    assert not any(item["sk"]["S"].endswith(f"#{handler}") for item in engine.state_items())


def test_rows_that_others_add_to_keep_what_they_have_of_these(engine):
    filled(engine)
    assert retired(engine, "beside", remove=True).rows > 0
    assert rows(engine)["GROUP#x"] == {
        "PK": {"S": "GROUP#x"},
        "SK": {"S": "TOTAL"},
        "_sf_n": {"N": "3"},
        "total": {"N": "6"},
        "items": {"N": "3"},
        "more": {"N": "0"},
    }


def filled_in_deltas(engine, *numbers, before=()):
    """Has a process put what items add into deltas, and die before it moves them."""

    def dies(_):
        raise Died

    run = Runtime(ALL, engine, Settings(), pause=dies)
    run.pace.sharing.forced = lambda row: row[1] == "OTHER#x"
    named = {n: item(f"ITEM#{n}", group="x", amount=n, name="n") for n in (*numbers, *before)}
    changes = [change(None, named[n], n) for n in numbers] + [change(named[n], None, 10 + n) for n in before]
    with suppress(Died):
        process_changes(run, changes)
    assert deltas(engine)


def deltas(engine):
    return [item for item in engine.state_items() if item["pk"]["S"].startswith("delta#")]


@pytest.mark.parametrize("remove", [True, False])
def test_what_waits_in_deltas_is_moved_before_a_handler_is_retired(remove):
    engine = MemoryEngine(ALL.tables.values())
    filled(engine, numbers=(1, 2))
    filled_in_deltas(engine, 3, before=[1])
    report = retired(engine, "other", remove=remove)
    assert (report.kept, deltas(engine)) == ([], [])
    assert rows(engine).get("OTHER#x", {}).get("total") == (None if remove else {"N": "5"})
    assert not any(name.startswith("other.") for stored in ledgers(engine) for name in stored)


@pytest.mark.parametrize("remove", [True, False])
def test_a_part_of_which_a_row_takes_no_more_is_kept_until_the_row_is_corrected(remove):
    engine = MemoryEngine(ALL.tables.values())
    filled(engine, numbers=(1, 2))
    filled_in_deltas(engine, 3)
    row = engine.rows[("main", "OTHER#x", "TOTAL")]
    engine.rows[("main", "OTHER#x", "TOTAL")] = row | {"total": {"BOOL": True}}
    report = retired(engine, "other", remove=remove)
    kept = {kept.key: kept.why for kept in report.kept}
    third = ledger_key("shop", "other", _key("ITEM#3"))
    if remove:  # what the row never took is taken out of its delta; the other items are in the row
        assert (len(kept), third in kept, deltas(engine)) == (2, False, [])
    else:
        assert "ValidationError" in kept[third]
        assert deltas(engine)
    engine.rows[("main", "OTHER#x", "TOTAL")] = row
    assert (retired(engine, "other", remove=remove).kept, deltas(engine)) == ([], [])
    assert rows(engine).get("OTHER#x", {}).get("total") == (None if remove else {"N": "6"})


@pytest.mark.parametrize("remove", [True, False])
def test_a_part_with_a_damaged_delta_is_kept_until_somebody_removes_it(remove):
    engine = MemoryEngine(ALL.tables.values())
    filled(engine, numbers=(1, 2))
    filled_in_deltas(engine, 3)
    (key,) = (key for key in engine.state if key.pk.startswith("delta#"))
    engine.state[key]["s"] = "{"
    (kept,) = retired(engine, "other", remove=remove).kept
    assert (kept.key, "Remove it" in kept.why) == (ledger_key("shop", "other", _key("ITEM#3")), True)
    engine.transact([DeleteState(key)], 0)
    assert retired(engine, "other", remove=remove).kept == []


def test_a_second_run_finds_nothing(engine):
    filled(engine)
    retired(engine, "total", remove=True)
    report = retired(engine, "total", remove=True)
    assert (report.contributions, report.dropped, report.rows) == (0, 0, 0)


def test_the_removal_of_an_item_is_one_transaction_again_and_the_item_expires():
    engine = MemoryEngine(ALL.tables.values())
    both, one = application("total", "own"), application("own", retired=["total"])
    filled(engine, both, numbers=(2,))
    retired(engine, "total", remove=False, app=both)
    refusals = []
    transact = engine.transact

    def counted(writes, expires_at):
        refused = transact(writes, expires_at)
        refusals.append(refused is not None)
        return refused

    engine.transact = counted
    gone = change(item("ITEM#2", group="x", amount=2, name="n"), None, 9)
    process_changes(run_of(one, engine), [gone])
    assert refusals == [False]
    (stored,) = (found for key, found in engine.state.items() if key.pk.startswith("ledger#"))
    assert (stored["live"], "ttl" in stored) == (0, True)


def test_an_item_of_its_own_that_a_killed_run_left_is_removed_by_the_next(monkeypatch):
    engine = MemoryEngine(ALL.tables.values())
    filled(engine, numbers=(1,))
    transact = engine.transact

    def dies(*_):
        raise Died

    monkeypatch.setattr(engine, "transact", dies)
    with pytest.raises(Died):
        retired(engine, "large", remove=False)
    assert any(key.pk.startswith("part#") for key in engine.state)
    monkeypatch.setattr(engine, "transact", transact)
    report = retired(engine, "large", remove=False)
    assert (report.contributions, report.kept) == (0, [])
    assert not any(key.pk.startswith("part#") for key in engine.state)


def test_a_part_that_others_change_at_every_try_is_kept_and_told(engine, monkeypatch):
    filled(engine, numbers=(1,))
    monkeypatch.setattr(engine, "swap_state", lambda *_: False)
    report = retired(engine, "total", remove=False)
    assert [kept.why for kept in report.kept] == ["Others changed it at each of 8 tries."]


def test_a_part_of_an_item_that_the_handler_reads_no_more_is_kept_and_told(engine):
    filled(engine, numbers=(1,))
    router = Router()
    router.view(Key("THING#{item_id}", "METADATA"), into=Key("GROUP#{group}", "TOTAL"))(total)
    report = retired(engine, "total", remove=True, app=App("shop", routers=[router]))
    assert [(kept.key, kept.why) for kept in report.kept] == [
        (ledger_key("shop", "main", _key("ITEM#1")), retire.NOT_TAKEN_BACK)
    ]
    assert rows(engine)["GROUP#x"]["total"] == {"N": "1"}


def test_a_part_of_an_item_whose_key_is_not_told_is_kept_and_told(engine):
    name = "ITEM#" + "x" * 2030
    process_changes(run_of(ALL, engine), [change(None, item(name, group="x", amount=1, name="n"), 1)])
    assert [kept.why for kept in retired(engine, "total", remove=True).kept] == [retire.UNKNOWN_ITEM]
    assert retired(engine, "total", remove=False).dropped == 1


ON = application("total", "own")
KNOWN = Manifest({"total": {"kind": "view", "contributes": True}})
GONE = Manifest({"total": {"kind": "view", "contributes": True, "retired": "2026-03-01"}})
WITHOUT = application("own", retired=["total"])


def audited():
    router = Router()
    router.audit(ITEM, name="audit")
    return App("shop", routers=[router])


@pytest.mark.parametrize(
    ("app", "found", "name", "remove", "off", "message"),
    [
        (ON, KNOWN, "totals", True, "", "The command names 'totals', which is no handler of the application: expected"),
        (
            ON,
            KNOWN,
            "total",
            True,
            "",
            "Handler 'total' is not switched off: a record that reaches it",
        ),
        (ON, KNOWN, "total", False, "", "wait for 15 minutes until no earlier invocation runs, and set it here too."),
        (WITHOUT, GONE, "total", True, "", "declare it again, take it out of retired=, and switch it off"),
        (WITHOUT, KNOWN, "total", False, "", "No function knows yet that handler 'total' is retired: deploy the code"),
        (audited(), KNOWN, "audit", True, "", "Handler 'audit' is of kind audit: the state keeps nothing of it that"),
    ],
)
def test_a_handler_that_cannot_be_retired_now_is_refused(app, found, name, remove, off, message):
    with pytest.raises(SettingsError) as refused:
        check_retirable(app, Settings(handlers_off=(off,) if off else ()), found, name, remove=remove, offline=False)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("app", "found", "remove", "off", "offline"),
    [(ON, KNOWN, True, "total", False), (ON, KNOWN, True, "", True), (WITHOUT, GONE, False, "", False)],
)
def test_a_handler_that_gets_no_records_may_be_retired(app, found, remove, off, offline):
    check_retirable(app, Settings(handlers_off=(off,) if off else ()), found, "total", remove=remove, offline=offline)


def sharing(*names, retired=()):
    """An application whose handlers, those of these names, add to one sum."""
    router, into = Router(), Key("GROUP#{group}", "TOTAL")
    for each in names:
        router.view(ITEM, into=into, name=each)(lambda item: Row(group=item["group"], total=Sum(item["amount"])))
    return App("shop", routers=[router], retired=retired)


@pytest.mark.parametrize("remove", [True, False])
def test_the_attribute_of_a_retired_handler_is_made_by_others_only_if_its_rows_were_removed(engine, remove):
    both, left = sharing("one", "two"), sharing("two", retired=["one"])
    filled(engine, both)
    assert retired(engine, "one", remove=remove, app=both).kept == []
    if remove:
        filled(engine, left, [4])
        assert rows(engine)["GROUP#x"]["total"] == {"N": "10"}
    else:
        with pytest.raises(ManifestError, match="would be written by 'two' too"):
            filled(engine, left, [4])


def test_a_handler_that_was_retired_and_is_declared_again_is_held_against_its_attributes_again(engine):
    both = sharing("one", "two")
    filled(engine, both)
    retired(engine, "one", remove=True, app=both)
    filled(engine, both, [4])
    with pytest.raises(ManifestError, match="would be written by 'two' too"):
        filled(engine, sharing("two", retired=["one"]), [5])


def test_the_attributes_of_a_handler_with_parts_that_were_kept_are_not_forgotten(engine, monkeypatch):
    both = sharing("one", "two")
    filled(engine, both)
    with monkeypatch.context() as busy:
        busy.setattr(type(engine), "swap_state", lambda *_: False)
        assert retired(engine, "one", remove=True, app=both).kept
    with pytest.raises(ManifestError, match="would be written by 'two' too"):
        filled(engine, sharing("two", retired=["one"]), [4])


def test_the_manifest_stays_as_it_is(engine):
    filled(engine)
    before = read_manifest("shop", engine)
    retired(engine, "total", remove=True)
    assert read_manifest("shop", engine) == before

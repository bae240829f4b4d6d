"""Rows of entries are recomputed after the commit, even if a process dies or another one writes in between."""

import pytest

from streamfold import App, Collect, Count, Distinct, First, Key, Latest, Max, Min, Router, Row, Top
from streamfold.batch.process import process_event
from streamfold.commit import after_commit
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import EngineUnavailable, HandlerError
from streamfold.failures.repair import Repair
from streamfold.keys.table import STAMP
from streamfold.parking import FileParking
from streamfold.read import has_more
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CONDITION, CONFLICT, VALIDATION, Reason, RecomputedRow, Refused
from tests.helpers.counting import KeepingEngine
from tests.helpers.model import model, stored
from tests.helpers.source import Source

PLAY = Key("GAME#{game}", "PLAY#{play}")
GAME = Key("GAME#{game}", "BEST")
PLAYER = Key("PLAYER#{player}", "STATS")
BEST = ("main", "GAME#a", "BEST")


def best(item, play):
    yield Row(best=Max(item["score"]), plays=Count())


def everything(item, play):
    if item.get("counts", True):
        yield Row(
            best=Max(item["score"]),
            worst=Min(item["score"]),
            last=Latest(play, by=item["score"]),
            first=First(play, by=item["score"]),
            top=Top(2, play, by=item["score"]),
            scores=Collect(item["score"], most=2),
            listed=Collect(item["score"], most=3, into=list),
            different=Distinct(item["score"]),
        )
    yield Row(plays=Count())


def yielding(row_of):
    """A handler that yields one row for each play."""

    def handler(item, play):
        yield row_of(item)

    return handler


def app_of(handler, into=GAME, on_error="retry"):
    router = Router()
    router.view(PLAY, into=into, name="best", on_error=on_error)(handler)
    return App("games", routers=[router])


class Died(BaseException):
    """The process ended here."""


class Games:
    """A stream of plays, an application over it, and a store; ``before`` does something before the n-th call of it."""

    def __init__(self, handler=best, engine=None, into=GAME, parking=None, **source):
        self.app = app_of(handler, into, on_error="park" if parking else "retry")
        self.parking = parking
        self.engine = engine or MemoryEngine(self.app.tables.values())
        self.source = Source(**source)
        self.calls = []
        self.before = {}

    def put(self, play, score, **more):
        return self.source.put("GAME#a", f"PLAY#{play}", score=score, **more)

    def remove(self, play):
        return self.source.remove("GAME#a", f"PLAY#{play}")

    def deliver(self, *records):
        run = Runtime(self.app, self, Settings(), pause=lambda seconds: None, parking=self.parking)
        return process_event(run, list(records)).failures

    def row(self):
        return stored(self.app, self.engine).get(BEST)

    def repair(self, play):
        run = Runtime(self.app, self, Settings(), pause=lambda seconds: None)
        return Repair(run).item(("main", "GAME#a", f"PLAY#{play}"))

    def __getattr__(self, name):
        method = getattr(self.engine, name)
        if not callable(method):
            return method

        def call(*arguments, **how):
            self.calls.append(name)
            if self.before:
                for due in (name, len(self.calls)):
                    if (meanwhile := self.before.pop(due, None)) is not None:
                        meanwhile(*arguments)
            return method(*arguments, **how)

        return call


def raising(error):
    def meanwhile(*_):
        raise error

    return meanwhile


def test_a_removed_extreme_leaves_no_trace():
    games = Games(everything)
    records = [games.put(play, score) for play, score in (("x", 7), ("y", 9), ("z", 7))]
    assert games.deliver(*records) == []
    assert games.row()["best"] == 9
    records.append(games.remove("y"))
    games.deliver(records[-1])
    assert games.row() == model(games.app, records)[BEST]
    assert games.row() == {
        "best": 7, "worst": 7, "last": "x", "first": "x", "top": ["x", "z"], "scores": {7}, "listed": [7, 7],
        "different": 1, "plays": 2,
    }  # fmt: skip


def test_an_attribute_without_entries_is_gone_from_a_row_that_still_has_sources():
    games = Games(everything)
    games.deliver(games.put("x", 7))
    games.deliver(games.put("x", 7, counts=False))
    assert games.row() == {"plays": 1}
    assert not [name for name in games.engine.rows[BEST] if name.startswith("_sf_e_")]


def test_a_row_whose_last_source_left_is_removed():
    games = Games()
    games.deliver(games.put("x", 7), games.put("y", 9))
    games.deliver(games.remove("x"), games.remove("y"))
    assert games.engine.rows == {}
    assert not [key for key in games.engine.state if key.pk.startswith("entries#")]


def in_every_place(run):
    """Runs with something in between before each call of the store in turn, until there are no more calls."""
    for number in range(1, 100):
        if not run(number):
            return number
    raise AssertionError("it never ends")


def with_another_between(stored, change, other, row):
    """A run of one change with another delivered in between its calls, or behind them; ``row`` is what must be left."""

    def run(number):
        games = Games()
        games.deliver(*(games.put(*each) for each in stored))
        first, second = change(games), other(games)
        games.before[len(games.calls) + number] = lambda *_: games.deliver(second)
        games.deliver(first)
        if games.before:
            games.deliver(second)
        assert games.row() == row, number
        return not games.before

    return run


def test_what_is_put_while_a_greater_value_leaves_is_never_lost():
    """7 is there, 9 is the greatest; one removes 9 while another puts 8: in every place between its calls."""
    stored, left = [("x", 7), ("y", 9)], {"best": 8, "plays": 2}
    run = with_another_between(stored, lambda games: games.remove("y"), lambda games: games.put("z", 8), left)
    assert in_every_place(run) > 4


def test_what_leaves_while_a_smaller_value_is_put_leaves_no_trace():
    stored, left = [("x", 7), ("y", 9)], {"best": 8, "plays": 2}
    run = with_another_between(stored, lambda games: games.put("z", 8), lambda games: games.remove("y"), left)
    assert in_every_place(run) > 3


def test_a_row_that_is_filled_again_while_it_becomes_empty_shows_nothing_of_before():
    stored, left = [("y", 9)], {"best": 1, "plays": 1}
    run = with_another_between(stored, lambda games: games.remove("y"), lambda games: games.put("z", 1), left)
    assert in_every_place(run) > 3


@pytest.mark.parametrize("view", ["NEW_AND_OLD_IMAGES", "NEW_IMAGE"])
@pytest.mark.parametrize("group", ["a", "b"])
def test_what_a_process_that_died_left_is_recomputed_when_the_record_comes_again(view, group):
    """Before each call in turn; also where the stream does not tell which row an item stood in before."""

    def by_group(item):
        yield Row(GAME, game=item["group"], best=Max(item["score"]), plays=Count())

    def run(number):
        games = Games(by_group, into=[GAME, PLAYER], view=view)
        first = [games.put("x", 7, group="a"), games.put("y", 9, group="a")]
        games.deliver(*first)
        changed = games.put("y", 5, group=group)
        games.before[len(games.calls) + number] = raising(Died())
        try:
            games.deliver(changed)
        except Died:
            games.deliver(changed)
        expected = model(games.app, [*first, changed])
        found = {key: row for key, row in stored(games.app, games.engine).items() if row.get("plays")}
        assert found == expected, number
        return not games.before

    assert in_every_place(run) > 3


def test_a_repair_recomputes_what_a_process_that_died_left():
    games = Games()
    games.deliver(games.put("x", 7))
    games.before["read_rows"] = raising(Died())
    with pytest.raises(Died):
        games.deliver(games.put("x", 5))
    assert games.row()["best"] == 7
    source = encode(games.source.items["GAME#a", "PLAY#x"])["M"]
    games.engine.put_sources([(("main", "GAME#a", "PLAY#x"), source, "1")])
    (repaired,) = games.repair("x")
    assert repaired.error is None
    assert games.row()["best"] == 5


def test_what_the_store_does_not_answer_is_reported_and_recomputed_when_the_record_comes_again():
    games = Games()
    record = games.put("x", 7)
    games.before["read_rows"] = raising(EngineUnavailable("no answer"))
    (failure,) = games.deliver(record)
    assert (failure.handler, str(failure.error)) == ("best", "no answer")
    assert "best" not in games.row()
    assert games.deliver(record) == []
    assert games.row() == {"best": 7, "plays": 1}


class Refusing(MemoryEngine):
    """Refuses to recompute rows with a reason, so many times."""

    def __init__(self, tables, reason, times):
        super().__init__(tables)
        self.reason = reason
        self.times = times

    def transact(self, writes, expires_at):
        if isinstance(writes[0], RecomputedRow) and self.times:
            self.times -= 1
            return Refused((self.reason,))
        return super().transact(writes, expires_at)


@pytest.mark.parametrize("code", [CONDITION, *CONFLICT])
@pytest.mark.parametrize(("times", "failures"), [(1, 0), (TRIES_MAX - 1, 0), (TRIES_MAX, 1)])
def test_a_row_that_others_change_is_read_again_a_bounded_number_of_times(code, times, failures):
    games = Games(engine=Refusing(app_of(best).tables.values(), Reason(code), times))
    found = games.deliver(games.put("x", 7))
    assert len(found) == failures
    assert all("the row is changed or throttled" in str(failure.error) for failure in found)
    assert all(str(failure.error).endswith("; it is retried.") for failure in found)


def test_what_the_store_will_never_take_is_reported_with_its_reason():
    games = Games(engine=Refusing(app_of(best).tables.values(), Reason(VALIDATION, None, "too large"), 99))
    (failure,) = games.deliver(games.put("x", 7))
    assert str(failure.error) == "The store refused the values of row GAME#a / BEST, ValidationError: too large"


def outgrown(item, play):
    yield Row(plays=Count(), **{name: Top(100, name * 1900, by=item["score"]) for name in "abcd"})


def outgrow(**options):
    """Plays whose lists are together larger than an item may be, and what became of the last batch."""
    games = Games(outgrown, **options)
    games.deliver(*(games.put(f"{number:03d}", number) for number in range(50)))
    before, failures = games.row(), games.deliver(*(games.put(str(number), number) for number in range(50, 60)))
    assert games.row() == before | {"plays": 60}
    return failures


def test_a_row_that_outgrows_an_item_is_refused_with_what_is_large_in_it():
    failures = outgrow()
    message = str(failures[0].error)
    assert len(failures) == 10
    assert message.startswith("Row GAME#a / BEST would have 456")
    assert " bytes with its values, 409600 at most: a has 114" in message
    assert message.endswith("Keep fewer or smaller values, Top(n, value=...), Collect(..., most=), or take more rows.")


def test_the_records_of_a_row_that_outgrows_an_item_are_parked_where_the_handler_says_so(tmp_path):
    place = tmp_path / "parked.jsonl"
    assert outgrow(parking=FileParking(str(place))) == []
    assert len(place.read_text().splitlines()) == 10


def counted(handler, *scores):
    app = app_of(handler)
    games = Games(handler, engine=KeepingEngine(EmbeddedEngine(app.tables.values())))
    for start in range(0, len(scores), 50):
        some = enumerate(scores[start : start + 50], start)
        games.deliver(*(games.put(f"{number:05d}", score) for number, score in some))
    games.engine.calls.clear()
    return games


@pytest.mark.parametrize("count", [10, pytest.param(400, marks=pytest.mark.slow)])
def test_a_removed_extreme_is_one_query_of_as_many_entries_as_count_whatever_the_number_of_sources(count):
    games = counted(everything, *range(count))
    games.deliver(games.remove(f"{count - 1:05d}"))
    assert sorted(call.actions for call in games.engine.named("read_entries"))[:3] == [1, 2, 3]
    games = counted(best, *range(count))
    games.deliver(games.remove(f"{count - 1:05d}"))
    assert [(call.requests, call.actions) for call in games.engine.named("read_entries")] == [(1, 1)]
    assert len(games.engine.named("read_rows")) == 1


def tied(item, **choice):
    yield Row(plays=Count(), top=Top(2, item["score"], by=item["score"] // 1000, **choice))


@pytest.mark.parametrize(
    ("choice", "listed", "queries"),
    [
        ({}, [0, 1], 2),
        ({"ties": "largest key"}, [9, 8], 1),
        ({"smallest": True}, [0, 1], 1),
        ({"smallest": True, "ties": "largest key"}, [9, 8], 2),
    ],
)
def test_more_ties_than_a_list_takes_are_one_query_more_where_a_store_reads_them_last(choice, listed, queries):
    games = counted(yielding(lambda item: next(tied(item, **choice))), *range(10))
    assert games.row()["top"] == listed
    games.deliver(games.remove(f"{listed[0]:05d}"))
    assert games.row()["top"] == [listed[1], listed[1] * 2 - listed[0]]
    assert len(games.engine.named("read_entries")) == queries


def test_values_that_are_not_shown_cost_no_query_and_no_write_of_their_own():
    games = counted(best, *range(100, 200))
    games.deliver(games.put("less", 5), games.put("00003", 7), games.remove("00004"))
    assert not games.engine.named("read_entries")
    assert len(games.engine.named("transact")) == len(games.engine.named("read_rows")) == 1


def test_a_row_is_read_and_recomputed_once_for_a_batch():
    games = counted(best)
    games.deliver(*(games.put(f"{number}", number) for number in range(200)))
    assert len(games.engine.named("read_entries")) == len(games.engine.named("read_rows")) == 1
    assert len([write for write in games.engine.writes if isinstance(write, RecomputedRow)]) == 1


def test_different_values_are_counted_page_by_page_past_those_that_are_many():
    games = counted(yielding(lambda item: Row(different=Distinct(item["score"] // 150))), *range(151))
    assert games.row() == {"different": 2}
    games.deliver(*(games.put(f"more{number}", 150 * number) for number in range(2, 130)))
    assert games.row() == {"different": 130}
    games.engine.calls.clear()
    games.deliver(games.remove("00150"))
    assert games.row() == {"different": 129}
    assert len(games.engine.named("read_entries")) == 3


def test_a_set_of_more_values_than_are_kept_has_the_smallest():
    games = counted(yielding(lambda item: Row(kept=Collect(item["score"] // 60, most=3))), *range(400))
    assert games.row() == {"kept": {0, 1, 2}}
    games.deliver(*(games.remove(f"{number:05d}") for number in range(60, 120)))
    assert games.row() == {"kept": {0, 2, 3}}


@pytest.mark.parametrize("into", [set, list])
def test_a_collection_tells_whether_there_are_more_values_than_it_keeps(into):
    games = Games(yielding(lambda item: Row(kept=Collect(item["score"], most=3, into=into), n=Count())))

    def row():
        return decode({"M": games.engine.rows[BEST]})

    games.deliver(*(games.put(f"{number}", number) for number in range(3)))
    assert (games.row()["kept"], has_more(row(), "kept")) == (into(range(3)), False)
    games.deliver(games.put("3", 3))
    assert (games.row()["kept"], has_more(row(), "kept")) == (into(range(3)), True)
    games.deliver(games.remove("1"))
    assert (games.row()["kept"], has_more(row(), "kept")) == (into([0, 2, 3]), False)


def test_more_different_values_than_are_counted_are_refused_and_the_row_keeps_its_last_count(monkeypatch):
    monkeypatch.setattr(after_commit, "ALL_MAX", 150)
    games = Games(yielding(lambda item: Row(different=Distinct(item["score"]))))
    assert games.deliver(*(games.put(f"{number}", number) for number in range(150))) == []
    (failure,) = games.deliver(games.put("more", 150))
    assert isinstance(failure.error, HandlerError)
    assert "Distinct has more than 150 values on one row" in str(failure.error)
    assert games.row() == {"different": 150}
    assert games.deliver(games.remove("more")) == []
    assert games.row() == {"different": 150}


def wins(item, play):
    yield Row(player=item["player"], play=play, **item.get("more", {}), wins=item["score"])


def test_plain_attributes_are_those_of_the_source_that_wins():
    games = Games(wins, into=PLAYER)
    games.deliver(games.put("x", 1, player="ana", more={"note": "n"}), games.put("y", 2, player="ana"))
    row = ("main", "PLAYER#ana", "STATS")
    assert stored(games.app, games.engine)[row] == {"play": "y"}
    games.deliver(games.remove("y"))
    assert stored(games.app, games.engine)[row] == {"play": "x", "note": "n"}
    games.deliver(games.put("x", 1, player="bo"))
    assert set(stored(games.app, games.engine)) == {("main", "PLAYER#bo", "STATS")}


def test_a_source_of_more_entries_than_one_transaction_takes_goes_page_by_page():
    def by_level(item):
        for level in range(item["score"] % 10, 60):
            yield Row(PLAYER, player=str(level), best=Max(item["score"]), worst=Min(item["score"]), n=Count())

    games = Games(by_level, into=[GAME, PLAYER])
    records = [games.put("x", 7), games.put("y", 11), games.put("x", 24), games.remove("y"), games.put("x", 2)]
    for number, record in enumerate(records):
        assert games.deliver(record, record) == []
        assert stored(games.app, games.engine) == model(games.app, records[: number + 1])
    assert games.calls.count("transact") > 3 * len(records)


def test_the_entries_of_one_source_below_one_row_all_move_in_one_transaction():
    def many(item):
        for number in range(48):
            yield Row(kept=Collect(item["score"] + number, most=500), n=Count())

    games = Games(many)
    for score in (0, 100, 20):
        assert games.deliver(games.put("x", score)) == []
        assert games.row() == {"kept": set(range(score, score + 48)), "n": 48}


def test_sources_of_two_kinds_share_plain_attributes_of_which_one_wins():
    match = Key("GAME#{game}", "MATCH#{match}")
    games = Games(into=Key("GAME#{game}", "LAST"))
    router = Router()

    @router.view(PLAY, match, into=Key("LAST#{game}#{play}#{match}", "EVENT"), name="best")
    def last(item):
        yield Row(play="1", match="1", kind=item["SK"], plays=Count(), wins=item["score"])

    games.app = App("games", routers=[router])
    row = ("main", "LAST#a#1#1", "EVENT")
    records = [games.source.put("GAME#a", sort, score=score) for sort, score in (("PLAY#1", 1), ("MATCH#1", 2))]
    assert games.deliver(*records) == []
    assert stored(games.app, games.engine)[row] == {"kind": "MATCH#1", "plays": 2}
    assert games.deliver(games.source.remove("GAME#a", "MATCH#1")) == []
    assert stored(games.app, games.engine)[row] == {"kind": "PLAY#1", "plays": 1}


def test_an_expiry_of_a_shared_row_is_the_latest_of_its_sources():
    games = Games(yielding(lambda item: Row(expires=Max(item["until"]), plays=Count())))
    games.deliver(games.put("x", 1, until=1_900_000_000), games.put("y", 1, until=1_800_000_000))
    assert games.row()["expires"] == 1_900_000_000
    games.deliver(games.remove("x"))
    assert games.row()["expires"] == 1_800_000_000


def test_a_changed_function_takes_back_what_the_old_one_ordered():
    games = Games()
    games.deliver(games.put("x", 7), games.put("y", 9))
    games.app = app_of(yielding(lambda item: Row(best=Min(item["score"]), plays=Count())))
    games.deliver(games.put("y", 8))
    assert games.row() == {"best": 7, "plays": 2}
    games.app = app_of(yielding(lambda item: Row(plays=Count())))
    games.deliver(games.put("y", 1), games.put("x", 1))
    assert games.row() == {"plays": 2}


def test_a_target_that_was_written_by_one_view_and_then_by_two_keeps_what_it_shows():
    owned = Key("CARD#{game}#{play}", "CARD")
    games = Games(yielding(lambda item: Row(best=Max(item["score"]), name="a")), into=owned)
    games.deliver(games.put("x", 7))
    row = ("main", "CARD#a#x", "CARD")
    assert stored(games.app, games.engine)[row] == {"best": 7, "name": "a"}
    router = Router()
    router.view(PLAY, into=owned, name="best")(yielding(lambda item: Row(best=Max(item["score"]))))
    router.view(PLAY, into=owned, name="other")(yielding(lambda item: Row(plays=Count())))
    games.app = App("games", routers=[router])
    games.deliver(games.put("x", 5))
    assert stored(games.app, games.engine)[row].items() >= {"best": 5, "plays": 1}.items()


def test_stamps_differ_in_every_step():
    games = Games()
    stamps = set()
    for score in (1, 2, 1, 2, None, 1):
        games.deliver(games.put("x", score) if score else games.remove("x"))
        stamps.add(games.engine.rows.get(BEST, {}).get(STAMP, {"S": None})["S"])
    assert len(stamps) == 6

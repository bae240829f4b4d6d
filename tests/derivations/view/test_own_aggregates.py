"""Aggregates that are not the framework's: one class, exact under faults, in shards and not."""

import json
import re
from decimal import Decimal, localcontext
from statistics import median_low

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import Added, App, Collect, Key, Latest, Max, Ordered, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.commit import after_commit
from streamfold.engines import MemoryEngine
from streamfold.errors import DeclarationError, HandlerError
from streamfold.keys.table import CONTRIBUTORS
from streamfold.ledger.state_keys import schema_key
from streamfold.read import rows
from streamfold.read.derived_rows import together
from streamfold.records.values import decode
from streamfold.routes.aggregates import AGGREGATIONS, Aggregation, ordering, ordering_of, shown_of
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Diverged, Twin, check
from tests.helpers.source import Source

PLAY = Key("GAME#{game}", "PLAY#{play}")
STATS = Key("GAME#{game}", "STATS")
SHARDS = Key("GAME#{game}", "STATS#{shard:02d}")
PLAY_STATS = Key("GAME#{game}", "STATS#{play}")
ROW = ("main", "GAME#a", "STATS")


class Median(Ordered):
    """The value in the middle of all values of a row's sources; of two in the middle, the smaller one."""

    stored_as = "median"
    in_shards = True

    @staticmethod
    def show(values):
        return values[(len(values) - 1) // 2]

    @staticmethod
    def fold(given):
        return median_low(each.value for each in given)


class RunnerUp(Ordered):
    """The players of the two largest scores: of equal scores the one with the largest key comes first."""

    stored_as = "runner_up"
    largest_first = True
    ties = "largest key"
    in_shards = True

    def __init__(self, player, score):
        super().__init__(player, by=score, most=2)

    @staticmethod
    def show(values):
        return " before ".join(values)

    @staticmethod
    def fold(given):
        by_key = reversed(given)
        return " before ".join(each.value for each in sorted(by_key, key=lambda each: -each.by)[:2])


class LastSays(Ordered):
    """What the source with the largest ``by`` says, and among equal ones that with the smallest key, by all values."""

    stored_as = "last_says"
    largest_first = True
    in_shards = True

    @staticmethod
    def show(values):
        return {"last": values[0], "of": len(values)}

    @staticmethod
    def fold(given):
        return {"last": max(given, key=lambda each: each.by).value, "of": len(given)}


class Spread(Added):
    """What the variance of a number is computed from, exactly: its count, its sum and that of its squares."""

    def __init__(self, value):
        self.value = value

    def amounts(self, name):
        return (f"{name}_count", 1), (f"{name}_sum", self.value), (f"{name}_squares", self.value * self.value)


def stats(item, play):
    score = item["score"]
    return Row(
        middle=Median(score),
        second=RunnerUp(play, score),
        last=LastSays(play, by=score),
        spread=Spread(score),
    )


def app_of(function=stats, *, shards=None, into=STATS):
    router = Router()
    router.view(PLAY, into=SHARDS if shards else into, shards=shards, name="stats")(function)
    return App("games", routers=[router])


class Games:
    """Plays, and a store that outlives the processes which write to it."""

    def __init__(self):
        self.source, self.engine = Source(), None

    def process(self, app, *records):
        """What the handlers could not do with these records."""
        self.engine = self.engine or MemoryEngine(app.tables.values())
        report = process_event(Runtime(app, self.engine, Settings(), pause=lambda _: None), list(records))
        return [str(failure.error) for failure in report.failures]

    def play(self, play, score):
        return self.source.put("GAME#a", f"PLAY#{play}", score=score)

    def remove(self, play):
        return self.source.remove("GAME#a", f"PLAY#{play}")

    def row(self):
        return self.engine.read_rows([ROW]).get(ROW)

    def rows(self, into):
        items = self.engine.items(PLAY.table)
        rows = [{name: decode(value) for name, value in item.items()} for item in items]
        return [row for row in rows if row[CONTRIBUTORS] and into.match(row)]


@pytest.mark.parametrize("shards", [None, 3])
def test_it_is_what_its_sources_make_of_it(shards):
    twin = Twin(app_of(lambda item: Row(middle=Median(item["score"])), shards=shards))
    for play, score in enumerate([9, 1, 5, 7]):
        twin.put(PLAY, game="a", play=str(play), score=score)
    twin.delete(PLAY, game="a", play="3")
    rows = twin.rows(SHARDS if shards else STATS)
    assert [row["middle"] for row in rows] == [5] if shards is None else len(rows) > 1


@pytest.mark.slow
@pytest.mark.parametrize("shards", [None, 3])
def test_it_stays_exact_under_faults(shards):
    proof = check(app_of(shards=shards), {PLAY: [{"score": 3}, {"score": 4}, {"score": 5}]}, histories=20)
    assert proof.unproved == ()


SCORES = st.sampled_from([-3, 0, 7, 7, Decimal("8.5"), 9])
PLAYS = st.lists(st.tuples(st.sampled_from("abcdefgh"), SCORES), min_size=1, max_size=16)


@pytest.mark.slow
@given(PLAYS, st.sets(st.sampled_from("abcdefgh"), max_size=3), st.integers(2, 5))
@settings(max_examples=60)
def test_shards_show_together_what_one_row_shows(plays, removed, shards):
    shown = []
    for app, into in ((app_of(), STATS), (app_of(shards=shards), SHARDS)):
        games = Games()
        records = [games.play(*play) for play in plays]
        records += [games.remove(play) for play in sorted(removed & {play for play, _ in plays})]
        assert games.process(app, *records) == []
        shown.append(games.rows(into))
    keys = PLAY.table.attributes
    (one,) = [*rows(shown[0])] or [{}]
    assert together(shown[1], keys, {}) == {name: value for name, value in one.items() if name not in keys}


def test_a_shard_keeps_the_values_that_count_and_one_row_does_not():
    alone, spread = Games(), Games()
    for games, app in ((alone, app_of()), (spread, app_of(shards=2))):
        assert games.process(app, games.play("x", 5)) == []
    (row,) = spread.rows(SHARDS)
    assert row["_sf_p_middle"] == [5]
    assert row["_sf_p_second"] == [["N25005#main GAME#a PLAY#x", "x"]]
    assert row["_sf_e_middle"] == "own/median-sharded:0 "
    assert not [name for name in alone.row() if name.startswith("_sf_p_")]
    assert alone.row()["_sf_e_second"].startswith("own/runner_up-by:2 ")


def test_shards_that_were_made_for_fewer_values_show_only_as_many():
    rows_of_shards = [
        {"m": 2, "_sf_e_m": "own/median-sharded:0 ", "_sf_p_m": [1, 2, 9]},
        {"m": 4, "_sf_e_m": "own/median-sharded:2 N25005#", "_sf_p_m": [4, 5]},
    ]
    assert together(rows_of_shards, (), {}) == {"m": 1}


def test_a_reader_without_the_class_is_told_to_import_it(monkeypatch):
    games = Games()
    assert games.process(app_of(shards=2), games.play("x", 5)) == []
    for name in [name for name in AGGREGATIONS if name.startswith("own/median")]:
        monkeypatch.delitem(AGGREGATIONS, name)
    ordering_of.cache_clear()
    with pytest.raises(TypeError, match=r"'middle' is made in the form 'own/median-sharded', .* import the class"):
        together(games.rows(SHARDS), PLAY.table.attributes, {})


def test_shards_of_a_row_without_shards_are_refused_by_readers():
    games = Games()
    assert games.process(app_of(), games.play("x", 5)) == []
    with pytest.raises(TypeError, match=r"made of values that its shards do not keep, because its view has no shards="):
        together([games.row()], PLAY.table.attributes, {})


class Secret(Median):
    """A median of which rows in shards cannot keep all values."""

    stored_as = "secret"
    in_shards = False


def test_shards_of_one_that_cannot_be_merged_are_refused_at_import_with_its_line_and_the_remedy():
    with pytest.raises(DeclarationError) as caught:
        app_of(lambda item: Row(middle=Secret(item["score"])), shards=2)
    message = str(caught.value)
    assert re.search(r"view 'stats' \(.*test_own_aggregates.py:\d+\) has shards= and names Secret", message)
    assert re.search(r"Secret \(.*test_own_aggregates.py:\d+\), of which no reader knows how", message)
    assert "leave shards= out, or give the class in_shards = True, so that each shard's row keeps the values" in message


# What the state knows.


def test_the_state_remembers_it_by_its_own_name():
    games = Games()
    assert games.process(app_of(), games.play("x", 5)) == []
    key = schema_key("games", STATS.stored_name)
    kinds = json.loads(games.engine.read_state([key])[key]["kinds"])["stats"]
    assert kinds["middle"] == "own/median"
    assert kinds["spread_squares"] == "Sum"


OTHERS = {"Max": Max, "Sum": Sum, "own/median": Median, "own/secret": Secret}


@pytest.mark.parametrize("before", OTHERS)
@pytest.mark.parametrize("after", OTHERS)
def test_a_new_process_refuses_another_form_than_what_is_stored(before, after):
    games = Games()
    assert games.process(app_of(lambda item: Row(m=OTHERS[before](item["score"]))), games.play("x", 5)) == []
    errors = games.process(app_of(lambda item: Row(m=OTHERS[after](item["score"]))), games.play("y", 7))
    if before == after:
        assert errors == []
    else:
        (error,) = errors
        assert "one attribute of a target has one form" in error
        assert games.row()["m"] == 5


def forget(monkeypatch, name):
    """Makes a process in which nobody imported a class."""
    for form in [form for form in AGGREGATIONS if form.startswith(f"own/{name}")]:
        monkeypatch.delitem(AGGREGATIONS, form)
    ordering_of.cache_clear()


def test_a_process_without_the_class_makes_no_row_of_its_entries_and_a_later_one_does(monkeypatch):
    games, app = Games(), app_of(lambda item: Row(m=Median(item["score"])))
    assert games.process(app, games.play("x", 5), games.play("y", 7), games.play("z", 9)) == []
    removal = games.remove("x")
    with monkeypatch.context() as without:
        forget(without, "median")
        (error,) = games.process(app_of(lambda item: Row(n=Max(item["score"]))), removal)
        assert "stored as 'own/median', and this code has no aggregate of that name" in error
        assert games.row()["m"] == 7
    assert games.process(app, removal) == []
    assert games.row()["m"] == 7
    assert games.process(app, games.remove("y")) == []
    assert games.row()["m"] == 9


# What a class may be.


def declared(base=Ordered, **body):
    return type("Odd", (base,), {"__module__": __name__} | body)


STATIC = {"show": staticmethod(len), "fold": staticmethod(len)}


@pytest.mark.parametrize(
    ("base", "body", "message"),
    [
        (Ordered, {"stored_as": "Odd One", **STATIC}, "has stored_as = 'Odd One': expected a name of at most 40 small"),
        (Ordered, {"stored_as": 5, **STATIC}, "has stored_as = 5: expected a name"),
        (Ordered, {"stored_as": "median", **STATIC}, "is stored as 'median', and so is Aggregate Median ("),
        (
            Ordered,
            {"stored_as": "odd"},
            "no static method show: expected\n    @staticmethod\n    def show(values):",
        ),
        (Ordered, {"stored_as": "odd", **STATIC, "fold": len}, "has no static method fold: expected"),
        (Ordered, {"stored_as": "odd", **STATIC, "ties": "x"}, "ties = 'x': expected 'smallest key' or 'largest key'."),
        (Median, {"show": staticmethod(max)}, "has another show than Median, and the same name in rows"),
        (
            Max,
            {"fold": staticmethod(len)},
            "another fold than Max, and the same name in rows: derive it from Ordered",
        ),
        (Max, {"stored_as": "odd", **STATIC}, "and Max has a stored name of the framework: derive it from Ordered."),
    ],
)
def test_a_class_whose_rows_could_be_taken_for_others_is_refused_where_it_is_written(base, body, message):
    before = dict(AGGREGATIONS)
    with pytest.raises(DeclarationError, match=re.escape(message)) as caught:
        declared(base, **body)
    assert re.match(r"Aggregate Odd \(.*test_own_aggregates.py:\d+\)", str(caught.value))
    assert before == AGGREGATIONS


@pytest.mark.parametrize("body", [{"stored_as": "odd"}, {"forms": (Aggregation("own/odd", by_value=True),)}])
def test_a_shipped_class_with_a_name_of_users_aggregates_is_refused(body):
    before = dict(AGGREGATIONS)
    with pytest.raises(DeclarationError, match=r"Odd .* is the framework's, .* give it forms = .*CONTRIBUTING.md"):
        declared(**body, **STATIC, __module__="streamfold.routes.shipped_aggregates")
    assert before == AGGREGATIONS


def test_a_class_that_only_gives_its_values_otherwise_is_stored_as_its_base():
    class Tens(Median):
        def __init__(self, value):
            super().__init__(value // 10)

    class Best(Max):
        def __init__(self, item):
            super().__init__(item["score"])

    assert (Tens(57).ordering.text, Best({"score": 5}).ordering.text) == ("own/median:0", "max:1")
    assert repr(Best({"score": 5})) == "Max(5)"


def test_a_module_that_is_loaded_again_has_the_same_classes():
    for _ in range(2):
        again = declared(stored_as="again", **STATIC)
    assert AGGREGATIONS["own/again"].aggregate is again


def test_a_base_has_no_values():
    with pytest.raises(HandlerError, match="has no stored name: give its class a name for rows, stored_as"):
        declared(**STATIC)(5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Median(1.5), "Median(1.5) is ordered by 1.5 of type float, which does not compare"),
        (lambda: LastSays(1, by=None), "LastSays(1, by=None) is ordered by None of type NoneType"),
        (lambda: LastSays("x" * 2048, by=1), "has a value of 2056 bytes, 2048 at most: keep its key, or less of it."),
        (lambda: Ordered.__init__(LastSays(1, by=1), 1, most=1001), "expected a whole number from 1 to 1000."),
        (
            lambda: Twin(app_of(lambda item: Row(s=Spread(1.5)))).put(PLAY, game="a", play="1"),
            "Spread(1.5) is of type float",
        ),
    ],
)
def test_a_value_that_no_row_could_hold_is_refused(make, message):
    with pytest.raises(Exception, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("attribute", "message"), [("_sf_n", "adds to '_sf_n': key"), ("PK", "adds to 'PK': key"), ("", "Name ''")]
)
def test_amounts_count_no_contributors_and_change_no_key(attribute, message):
    class Intruder(Added):
        def amounts(self, name):
            return ((attribute, 1),)

    games = Games()
    (error,) = games.process(app_of(lambda item: Row(m=Intruder())), games.play("x", 5))
    assert message in error
    assert games.row() is None


def test_values_are_equal_as_they_are_stored():
    assert Median(5) == Median(Decimal("5.0"))
    assert Median(5) != Max(5)
    assert (Spread(2), repr(Spread(2))) == (Spread(2), "Spread(_count=1, _sum=2, _squares=4)")
    assert len({Spread(2), Spread(2), Spread(3), Median(5), Median(5)}) == 3
    assert repr(LastSays("a", by=1)) == "LastSays('a', by=1)"


class Third(Ordered):
    """The third part of the largest value, which not each number has."""

    stored_as = "third"
    show = staticmethod(lambda values: Decimal(values[-1]) / 3)
    fold = staticmethod(lambda given: Decimal(max(each.value for each in given)) / 3)


class Total(Ordered):
    """What a ``Sum`` should be."""

    stored_as = "total"
    show = staticmethod(sum)
    fold = staticmethod(lambda given: sum(each.value for each in given))


class Failing(Ordered):
    """What fails on values of several types."""

    stored_as = "failing"
    show = staticmethod(sum)
    fold = staticmethod(len)


@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        (Third, 7, r"Third \(.*\): show computed a number that 38 digits cannot hold exactly"),
        (Failing, "n/a", r"Failing \(.*\): show raised TypeError on 2 values: "),
    ],
)
def test_what_a_class_raises_fails_its_record_and_leaves_the_row(kind, bad, message):
    games, app = Games(), app_of(lambda item: Row(m=kind(item["score"])))
    assert games.process(app, games.play("x", 6)) == []
    shown = games.row()["m"]
    (error,) = games.process(app, games.play("y", bad))
    assert re.search(message, error)
    assert games.row()["m"] == shown
    assert games.process(app, games.remove("y")) == []
    assert games.row()["m"] == shown


@pytest.fixture
def shipped_mean():
    """A class as the framework has them, which computes what it shows."""
    mean = type(
        "Mean",
        (Ordered,),
        {
            "__module__": "streamfold.tested",
            "forms": (Aggregation("tested-mean", by_value=True),),
            "__init__": lambda self, value: self._set(ordering("tested-mean", 0), value, value, lambda: "Mean"),
            "show": staticmethod(lambda values: sum(values) / Decimal(len(values))),
        },
    )
    yield mean
    del AGGREGATIONS["tested-mean"]
    ordering_of.cache_clear()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([Decimal("1e-20"), 10**37], r"Mean \(.*\): show computed a number that 38 digits cannot hold exactly"),
        (["n/a"], r"Mean \(.*\): show raised TypeError on 2 values: "),
    ],
)
def test_what_a_shipped_class_raises_fails_its_records_and_no_other(shipped_mean, bad, message):
    games, app = Games(), app_of(lambda item: Row(m=shipped_mean(item["score"])))
    assert games.process(app, games.play("x", 6)) == []
    in_another_row = games.source.put("GAME#b", "PLAY#x", score=3)
    errors = games.process(app, *(games.play(str(number), score) for number, score in enumerate(bad)), in_another_row)
    assert len(errors) == len(bad)
    assert all(re.search(message, error) for error in errors)
    assert games.row()["m"] == 6
    assert [row["m"] for row in games.rows(STATS) if row["PK"] == "GAME#b"] == [3]


def test_a_set_of_values_that_an_earlier_aggregate_left_is_refused_until_their_items_are_made_anew():
    games, now = Games(), app_of(lambda item: Row(m=Collect(item["score"])))
    earlier = app_of(lambda item: Row(m=Latest({"score": item["score"]}, by=item["score"])))
    assert games.process(earlier, games.play("x", 5)) == []
    (error,) = games.process(now, games.play("y", 7))
    assert re.search(r"Collect \(.*\): show raised TypeError on 2 values: .*unhashable", error)
    assert games.row()["m"] == {"score": 5}
    assert games.process(now, games.play("x", 6)) == []
    assert games.row()["m"] == {6, 7}


def test_what_a_class_computes_is_exact_in_whatever_thread():
    form = Total(5).ordering.form
    with localcontext(prec=3):
        assert shown_of(form, [Decimal(10_001), Decimal("0.5")]) == Decimal("10001.5")


def test_more_values_than_are_read_are_refused_and_the_row_keeps_its_last_value(monkeypatch):
    monkeypatch.setattr(after_commit, "ALL_MAX", 3)
    games, app = Games(), app_of(lambda item: Row(m=Median(item["score"])))
    assert games.process(app, *(games.play(str(score), score) for score in range(3))) == []
    (error,) = games.process(app, games.play("4", 4))
    assert "Median has more than 3 values on one row, all of which each change reads: the row keeps its last" in error
    assert games.row()["m"] == 1
    assert games.process(app, games.remove("0")) == []
    assert games.row()["m"] == 2


def test_a_class_that_shows_otherwise_than_it_folds_diverges():
    class Wrong(Ordered):
        stored_as = "wrong"
        show = staticmethod(lambda values: values[0])
        fold = staticmethod(lambda given: max(each.value for each in given))

    with pytest.raises(Diverged):
        check(app_of(lambda item: Row(m=Wrong(item["score"]))), {PLAY: [{"score": 3}, {"score": 4}]}, histories=20)


def test_its_row_may_be_plain_where_it_has_one_source():
    twin = Twin(app_of(lambda item: Row(m=Median(item["score"]), name="x"), into=PLAY_STATS))
    twin.put(PLAY, game="a", play="1", score=5)
    assert [(row["m"], row["name"]) for row in twin.rows(PLAY_STATS)] == [(5, "x")]

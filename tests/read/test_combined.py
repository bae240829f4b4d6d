"""What the shards of a row make together: exactly what one row would show."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Average, Collect, Count, Distinct, First, Key, Latest, Max, Min, Router, Row, Sum, Top
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.errors import DeclarationError, HandlerError
from streamfold.keys.table import CONTRIBUTORS, EDGE
from streamfold.read import rows
from streamfold.read.derived_rows import one, together
from streamfold.records.values import decode
from streamfold.routes.aggregates import Ordered
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

PLAY = Key("GAME#{game}", "PLAY#{play}")
ONE = Key("GAME#{game}", "STATS")
SPREAD = Key("GAME#{game}", "STATS#{shard:02d}")
SCORES = st.sampled_from([-3, 0, 7, 7, 9])
TEXTS = st.sampled_from(["2026-03-01", "2026-03-02", ""])


def stats(item, play):
    yield Row(
        n=Count(),
        total=Sum(item["score"]),
        score=Average(item["score"]),
        best=Max(item["score"]),
        least=Min(item["at"]),
        last=Latest(play, by=item["score"]),
        first=First(play, by=item["at"]),
        leaders=Top(3, item["at"], by=item["score"]),
        some=Collect(item["at"], most=2),
        scores=Collect(item["score"], most=4, into=list),
    )


def winners(item, play):
    more = {"note": play} if item["score"] == 7 else {}
    yield Row(player=play, wins=item["at"], **more)


def different(item, play):
    yield Row(different=Distinct(item["score"]))


def leaders(most, **choice):
    """A handler that lists the plays of the greatest scores."""

    def handler(item, play):
        yield Row(leaders=Top(most, play, by=item["score"], **choice))

    return handler


class Game:
    """Plays of a game, folded into one row and into the rows of four shards."""

    def __init__(self, handler=stats):
        self.source, self.handler = Source(), handler
        self.engines = {ONE: None, SPREAD: None}

    def put(self, *plays):
        self._process([self.source.put("GAME#a", f"PLAY#{play}", score=score, at=at) for play, score, at in plays])

    def remove(self, play):
        self._process([self.source.remove("GAME#a", f"PLAY#{play}")])

    def _process(self, records):
        for into in self.engines:
            router = Router()
            router.view(PLAY, into=into, name="stats", shards=4 if into is SPREAD else None)(self.handler)
            app = App("games", routers=[router])
            self.engines[into] = self.engines[into] or MemoryEngine(app.tables.values())
            assert process_event(Runtime(app, self.engines[into], Settings()), records).failures == []

    def rows(self, into=SPREAD):
        items = self.engines[into].items(PLAY.table)
        rows = [{name: decode(value) for name, value in item.items()} for item in items]
        return [row for row in rows if row[CONTRIBUTORS] and into.match(row)]

    def shown(self, into, combine=None):
        return together(self.rows(into), PLAY.table.attributes, combine or {})


def others(item, play):
    yield Row(
        last=Latest(play, by=item["score"], ties="largest key"),
        first=First(play, by=item["at"], ties="largest key"),
        leaders=Top(3, play, by=item["score"], ties="largest key"),
        trailers=Top(3, play, by=item["score"], smallest=True),
        behind=Top(2, play, by=item["score"], smallest=True, ties="largest key"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("handler", [stats, others, winners])
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), SCORES, TEXTS), min_size=1, max_size=16),
    st.sets(st.sampled_from("abcdefgh"), max_size=3),
)
@settings(max_examples=20)
def test_shards_show_together_what_one_row_shows(handler, plays, removed):
    game = Game(handler)
    for play in plays:
        game.put(play)
    for play in removed & {play for play, _, _ in plays}:
        game.remove(play)
    alone = {name: value for row in rows(game.rows(ONE)) for name, value in row.items() if name not in ("PK", "SK")}
    assert game.shown(SPREAD) == alone


@pytest.mark.parametrize(
    ("choice", "listed"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"ties": "largest key"}, ["f", "e", "d", "c"]),
        ({"smallest": True}, ["a", "b", "c", "d"]),
        ({"smallest": True, "ties": "largest key"}, ["f", "e", "d", "c"]),
    ],
)
def test_of_equal_values_the_key_decides_in_whichever_shard_it_is(choice, listed):
    game = Game(leaders(4, **choice))
    game.put(*((play, 7, "") for play in "cbafed"))
    assert len(game.rows()) > 1
    assert game.shown(SPREAD) == {"leaders": listed}


def test_how_many_different_values_there_are_cannot_be_added_up():
    game = Game(different)
    game.put(("a", 7, ""), ("b", 7, ""), ("c", 9, ""), ("d", 9, ""))
    with pytest.raises(TypeError, match=r"'different' counts different values, and two shards may have the same one: "):
        game.shown(SPREAD)
    assert sum(game.shown(SPREAD, {"different": list})["different"]) >= 2


def test_a_list_is_as_long_as_the_shortest_that_was_asked_for():
    game = Game(leaders(1))
    game.put(("a", 1, ""), ("b", 2, ""), ("c", 3, ""), ("d", 4, ""))
    game.handler = leaders(3)
    game.put(("a", 5, ""))
    assert game.shown(SPREAD) == {"leaders": ["a"]}
    game.put(("b", 2, "x"), ("c", 3, "x"), ("d", 4, "x"))
    assert game.shown(SPREAD) == {"leaders": ["a", "d", "c"]}


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (
            [{"a": 5, "_sf_e_a": "max:1 N1#x"}, {"a": 3, "_sf_e_a": "min:1 N0#x"}],
            r"made differently .* \(max:1, min",
        ),
        ([{"a": 5, "_sf_e_a": "max:1 N1#x"}, {"a": 3}], r"made differently in its shards \(a number, max:1\)"),
        ([{"a": [5], "_sf_e_a": "top:1 N1#x"}], r"'a' is a list whose shards do not keep its order"),
        ([{"a": True}], r"'a' is no number: give the function that combines its shards, combine=\{'a': max\}"),
    ],
)
def test_what_the_shards_do_not_tell_is_refused(shards, message):
    with pytest.raises(TypeError, match=message):
        one(shards, "a")


def test_shards_are_added_up_however_many_digits_a_part_of_them_needs():
    large = Decimal(12345678901234567890123456789012345678)
    assert one([{"a": large}, {"a": Decimal("0.5")}, {"a": large.copy_negate()}], "a") == Decimal("0.5")
    with pytest.raises(HandlerError, match="DynamoDB holds 38 digits"):
        one([{"a": large}, {"a": Decimal("0.5")}], "a")


class Middle(Ordered):
    """An aggregate of somebody else's, of which no reader knows how shards go together."""

    stored_as = "middle"

    @staticmethod
    def show(values):
        return values[len(values) // 2]

    @staticmethod
    def fold(given):
        return sorted(each.value for each in given)[len(given) // 2]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_form_whose_shards_no_reader_knows_is_refused(shards):
    found = [{"PK": str(n), "m": n, EDGE + "m": "own/middle:0 "} for n in range(shards)]
    with pytest.raises(TypeError, match="does not know how shards are put together"):
        together(found, ("PK",), {})
    assert together(found, ("PK",), {"m": list}) == {"m": [*range(shards)]}


def test_a_form_of_newer_code_is_refused():
    with pytest.raises(TypeError, match="'unheard'"):
        one([{"m": 1, EDGE + "m": "unheard:0 "}], "m")


def test_shards_of_an_aggregate_that_no_reader_puts_together_are_refused_at_import():
    router = Router()
    router.view(PLAY, into=SPREAD, shards=2, name="stats")(lambda item: Row(m=Middle(item["score"])))
    with pytest.raises(DeclarationError, match="names Middle"):
        App("games", routers=[router])


def test_an_aggregate_that_the_code_does_not_name_is_refused_when_it_is_given():
    made, router = {"middle": Middle}, Router()
    router.view(PLAY, into=SPREAD, shards=2, name="stats")(lambda item: Row(m=made["middle"](item["score"])))
    app, source = App("games", routers=[router]), Source()
    event = {"Records": [source.put("GAME#a", "PLAY#1", score=1)]}
    engine = MemoryEngine(app.tables.values())
    (failure,) = process_event(Runtime(app, engine, Settings(), pause=lambda _: None), event).failures
    assert "leave shards= out" in str(failure)

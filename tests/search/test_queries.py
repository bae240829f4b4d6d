"""The queries of docs/search.md give what a plain look through the items of the recorded events gives.

They run on OpenSearch 3.6.0. What Maven Central has of 2.19.6 lacks the analyzers of languages, and ``scaled_float``.
"""

import pytest

from handlers import app
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.opensearch import open_search
from streamfold.engines import EmbeddedEngine
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles
from streamfold.replay.replay import Replay
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.queries import (
    HITS_MAX,
    Answer,
    create_indices,
    orders_found,
    page_query,
    products_found,
    remove_indices,
    song_query,
    songs_found,
)
from tests.systems import EVENTS, Replayed

VERSION = "3.6.0"
pytestmark = [pytest.mark.engine, pytest.mark.opensearch]


@pytest.fixture(scope="module")
def searched(servers):
    """A server with the documents of the recorded products, orders and songs."""
    server = servers(VERSION)
    create_indices(app, server)
    engine = EmbeddedEngine(app.tables.values(), wanted=app.chains)
    run = Runtime(app, engine, Settings(search=server.url))
    run.opened[OPENED] = sink = open_search(run.settings)
    replay = Replay(run, Origins(app.source_tables, Settings()), put_sources=engine.put_sources)
    assert replay.process(RecordedFiles([str(EVENTS / f"{name}.jsonl") for name in ("search", "shop")])).clean
    sink.close()
    engine.close()
    yield server
    remove_indices(app, server)


@pytest.fixture(scope="module")
def catalogue():
    return Replayed("search")


def test_products_are_found_by_words_counted_by_category_and_sorted_by_rating(searched, catalogue):
    ids, categories = products_found(catalogue.items)
    assert len(ids) > 2
    assert len(categories) > 1
    answer = Answer(searched, "products", page_query("products"))
    assert (answer.ids, answer.facet) == (ids, categories)


def test_orders_are_found_by_what_one_of_their_lines_says(searched):
    expected = orders_found(Replayed("shop").items)
    answer = Answer(searched, "orders", page_query("orders"))
    assert answer.total == len(expected) > 2
    assert answer.ids == expected[:HITS_MAX]


def by_title(part):
    return lambda title, *_: part in title


def by_artist(artist):
    return lambda _, found, *__: found == artist


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        pytest.param("house", by_title("House"), id="english"),
        pytest.param("haus", by_title("Häuser"), id="german"),
        pytest.param("cancion puente", by_title("Canción de los puentes"), id="spanish, accent and plural left out"),
        pytest.param("東京", by_title("東京"), id="japanese"),
        pytest.param("anima rio", by_artist("Ánima del Río"), id="artist, accents left out"),
        pytest.param("Elephant", by_title("Elephant"), id="nothing"),
    ],
)
def test_songs_are_found_in_each_language_by_its_own_rules(searched, catalogue, text, is_meant):
    expected, languages = songs_found(catalogue.items, is_meant)
    assert expected or text == "Elephant"
    answer = Answer(searched, "songs", {**song_query(text), "size": 100})
    assert (set(answer.ids), answer.facet) == (expected, languages)


def test_what_is_gone_is_in_the_index_and_not_found(searched, catalogue):
    everything = {"query": {"match_all": {}}, "size": 100}
    shown = Answer(searched, "products", everything)
    whole = Answer(searched, "products~000001", everything)
    assert set(shown.ids) == set(catalogue.documents("products"))
    assert set(shown.ids) < set(whole.ids)

"""The indexes of an application by the names that a person gives them, and what each is created with."""

import json

import pytest

from streamfold import App, Document, Key, Router
from streamfold.derivations.search.indexes import find_index, whole_names
from streamfold.derivations.search.sink import VISIBLE
from streamfold.errors import SettingsError
from streamfold.settings import Settings
from tests.derivations.search.applications import one_item

SONG = Key("TENANT#{tenant}", "SONG#{song}")
PLACE = Key("PLACE#{land}#{town}", "METADATA")


def application(*searches, fields=None):
    """An application with searches: (key, name of the handler, options)."""
    router = Router()
    for key, name, options in searches:
        given = {"fields": {"title": "text"}, **options}

        @router.search(key, name=name, **given)
        def made(item):
            return Document(title=item["title"])

    return App("shop", routers=[router])


SONGS = application((SONG, "song", {"to": "songs-{tenant}"}), (PLACE, "place", {"to": "places-{land}-{town}"}))
TAKEN_OVER = application((SONG, "song", {"to": "songs"}), (SONG, "song_2", {"to": "songs", "replaces": "song"}))


@pytest.mark.parametrize(
    ("app", "name", "handler", "alias"),
    [
        (one_item(), "orders", "order", "orders"),
        (SONGS, "songs-acme", "song", "songs-acme"),
        (SONGS, "songs-Acme Ltd", "song", "songs-%41cme%20%4ctd"),
        (SONGS, "songs-%41cme%20%4ctd", "song", "songs-%41cme%20%4ctd"),
        (SONGS, "places-it-rome", "place", "places-it-rome"),
        (TAKEN_OVER, "songs", "song", "songs"),
        (TAKEN_OVER, "songs~next", "song_2", "songs~next"),
    ],
)
def test_an_index_is_found_by_its_name_with_a_value_for_each_field(app, name, handler, alias):
    index = find_index(app.routes, name, Settings())
    assert (index.route.name, index.alias, index.first) == (handler, alias, f"{alias}~000001")


@pytest.mark.parametrize(("name", "alias"), [("songs-acme", "prod-acme-songs"), ("prod-acme-songs", "prod-acme-songs")])
def test_a_setting_gives_the_real_name_and_either_finds_the_index(name, alias):
    settings = Settings(indexes={"songs": "prod-{tenant}-songs"})
    assert find_index(SONGS.routes, name, settings).alias == alias


def test_a_name_that_is_declared_comes_before_a_real_one():
    app = application((SONG, "song", {"to": "songs"}), (PLACE, "place", {"to": "places"}))
    assert find_index(app.routes, "places", Settings(indexes={"songs": "places", "places": "prod"})).alias == "prod"


@pytest.mark.parametrize(
    ("app", "name", "message"),
    [
        (one_item(), "order", "Index 'order' is not known: expected orders."),
        (SONGS, "songs", "Index 'songs' is not known: expected songs-{tenant}, places-{land}-{town}. Give a value for"),
        (TAKEN_OVER, "song", "Index 'song' is not known: expected songs, songs~next."),
        (App("shop", routers=[]), "orders", "Index 'orders' is not known: the application has no search."),
    ],
)
def test_a_name_that_is_none_is_refused(app, name, message):
    with pytest.raises(SettingsError) as raised:
        find_index(app.routes, name, Settings())
    assert str(raised.value).startswith(message)


def test_an_index_is_created_with_mapping_settings_and_a_filtered_alias_in_one_request(tmp_path):
    analysis = {"analyzer": {"own": {"tokenizer": "standard", "filter": ["lowercase"]}}}
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"settings": {"index": {"number_of_replicas": 0}, "analysis": analysis}}))

    body = find_index(one_item(settings=str(file)).routes, "orders", Settings()).body

    assert body["settings"] == {
        "index.number_of_replicas": 0,
        "index.analysis.analyzer.own.tokenizer": "standard",
        "index.analysis.analyzer.own.filter": ["lowercase"],
    }
    assert body["mappings"]["dynamic"] is False
    assert set(body["mappings"]["properties"]) == {"title", "_sf_gone", "_sf_at", "_sf_h"}
    assert body["aliases"] == {"orders": {"filter": VISIBLE, "is_write_index": True}}


def test_an_index_whose_documents_are_deleted_remembers_their_versions_longer():
    assert find_index(one_item(deletes="removed").routes, "orders", Settings()).settings == {"index.gc_deletes": "1h"}


def test_a_declared_setting_is_not_replaced(tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"index": {"gc_deletes": "6h"}}))
    app = one_item(deletes="removed", settings=str(tmp_path / "settings.json"))
    assert find_index(app.routes, "orders", Settings()).settings == {"index.gc_deletes": "6h"}


@pytest.mark.parametrize(
    "given",
    [{"number_of_shards": 2}, {"index.number_of_shards": 2}, {"index": {"number_of_shards": 2}}],
)
def test_settings_have_one_whole_name_however_they_are_written(given):
    assert whole_names(given) == {"index.number_of_shards": 2}

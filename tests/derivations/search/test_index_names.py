"""The names of indexes: two searches never write one, and what the framework adds to a name is nobody's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Document, Key, Router
from streamfold.batch.process import check_settings, process_changes, undeclared_names
from streamfold.derivations.search.documents import index_of
from streamfold.derivations.search.indexes import find_index
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.options import INDEX_BYTES_MAX, NEXT, NUMBERED, OWN, alias_of, own_alias
from streamfold.engines import MemoryEngine
from streamfold.errors import DeclarationError, SettingsError
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Twin

SONG = Key("TENANT#{tenant}", "SONG#{song}")
PLACE = Key("PLACE#{tenant}", "{name}")
ADDED = (NEXT, OWN, "~000001", "~000002", "~000002~write", "~next~000001", "~next~000001~write")


def application(*indexes, sources=(SONG, SONG), replaces=None):
    """An application with a search for each index; the second one may replace the first."""
    router = Router()
    for number, to in enumerate(indexes):
        options = {"replaces": replaces} if number else {}

        @router.search(sources[number], to=to, name="ab"[number], fields={"by": "keyword"}, **options)
        def made(item, tenant, name="ab"[number]):
            return Document(by=f"{name} {tenant}")

    return App("shop", routers=[router])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("orders-eu", "orders_eu"),
        ("orders-eu", "orders.eu"),
        ("songs", "songs-{tenant}"),
        ("songs.a-{tenant}", "songs_a-{tenant}"),
    ],
)
def test_two_indexes_that_one_setting_names_are_refused_when_the_application_is_built(one, other):
    with pytest.raises(DeclarationError, match="would both be named by the setting STREAMFOLD_INDEX_"):
        application(one, other)


@pytest.mark.parametrize(
    "indexes",
    [
        {"a": "x", "b": "x"},
        {"a": "b"},
        {"b": "a"},
    ],
)
def test_two_searches_with_one_real_index_are_refused(indexes):
    app = application("a", "b")
    with pytest.raises(SettingsError, match=r"Searches 'a' .* and 'b' .* would write one index"):
        check_settings(app, Settings(indexes=indexes))
    with pytest.raises(SettingsError, match="would write one index"):
        process_changes(Runtime(app, MemoryEngine([]), Settings(indexes=indexes)), [])


@pytest.mark.parametrize(
    "indexes",
    [
        {"one": "prod-{tenant}"},
        {"prod_a": "one-x"},
        {"one": "p-{tenant}", "prod_a": "p-x"},
    ],
)
def test_real_names_with_fields_are_compared_for_all_values(indexes):
    app = application("one-{tenant}", "prod-a", sources=(SONG, PLACE))
    check_settings(app, Settings())
    with pytest.raises(SettingsError, match="would write one index"):
        check_settings(app, Settings(indexes=indexes))


def test_names_that_are_exchanged_are_taken():
    check_settings(application("a", "b"), Settings(indexes={"a": "b", "b": "a"}))


def test_a_search_that_takes_an_index_over_has_its_setting_too():
    app = application("a", "a", replaces="a")
    settings = Settings(indexes={"a": "prod"})
    check_settings(app, settings)
    assert [index_of(route, {}, settings) for route in app.routes] == ["prod", "prod~next"]


@pytest.mark.parametrize("name", ["products~next", "products~000002", "a~b", "a%b"])
def test_what_the_framework_adds_is_in_no_declared_name_and_in_no_setting(name):
    with pytest.raises(DeclarationError, match="the name of an index has small letters"):
        application(name)
    with pytest.raises(SettingsError, match=r"STREAMFOLD_INDEX_A='.*' names no index"):
        check_settings(application("a"), Settings(indexes={"a": name}))


@given(st.text(min_size=1, max_size=20).filter(lambda text: "#" not in text))
def test_no_tenant_has_an_index_with_a_name_of_a_rebuild(tenant):
    (route,) = application("songs-{tenant}").routes
    name = index_of(route, {"tenant": tenant}, Settings())
    assert "~" not in name
    assert alias_of(name) == name


@pytest.mark.parametrize("added", ADDED)
def test_a_tenant_whose_name_ends_like_a_rebuild_has_an_index_of_its_own(added):
    (route,) = application("songs-{tenant}").routes
    assert "songs-a" + added != index_of(route, {"tenant": "a" + added}, Settings())


@pytest.mark.parametrize("name", [own_alias("songs"), NUMBERED.format("songs", 7), own_alias("songs~1000000"), "songs"])
def test_a_name_of_a_rebuild_tells_its_alias(name):
    assert (alias_of(name), alias_of("songs" + NEXT)) == ("songs", "songs~next")


def test_what_is_added_fits_in_the_length_of_a_name():
    assert len(own_alias(NUMBERED.format("a" * INDEX_BYTES_MAX + NEXT, 1))) == 255


@pytest.mark.parametrize("other", ["a-next", "a~next", "a-write", "a~write", "a-000001", "a~000001"])
def test_tenants_do_not_meet_while_a_search_is_replaced(other):
    twin = Twin(application("songs-{tenant}", "songs-{tenant}", replaces="a"))
    for tenant in ("a", other):
        twin.put(SONG, tenant=tenant, song="1")
    local = LocalIndex(twin.engine)
    for tenant in ("a", other):
        names = [index_of(route, {"tenant": tenant}, Settings()) for route in twin.app.routes]
        shown = [[found.body["by"] for found in local.documents(name)] for name in names]
        assert shown == [[f"a {tenant}"], [f"b {tenant}"]]


def test_an_index_whose_tenant_ends_like_a_rebuild_is_found_by_its_name():
    app = application("songs-{tenant}", "songs-{tenant}", replaces="a")
    found = [find_index(app.routes, name, Settings()) for name in ("songs-a-next", "songs-a~next", "songs-a%7enext")]
    assert [(index.route.name, index.alias) for index in found] == [
        ("a", "songs-a-next"),
        ("b", "songs-a~next"),
        ("a", "songs-a%7enext"),
    ]


@pytest.mark.parametrize(
    ("replaces", "message"),
    [
        ({"a": "a", "b": "a"}, "expected the name of another search"),
        ({"a": "b", "b": "a"}, "which replaces another search"),
    ],
)
def test_searches_that_replace_one_another_are_refused(replaces, message):
    router = Router()
    for name in "ab":
        options = {"replaces": replaces[name]} if name in replaces else {}
        router.search(SONG, to="songs", name=name, fields={"by": "keyword"}, **options)(lambda item: Document())
    with pytest.raises(DeclarationError, match=message):
        App("shop", routers=[router])


OF_SONGS = "names no index of the application: expected STREAMFOLD_INDEX_SONGS for index 'songs-{tenant}'."
OF_MAIN = "names no table of the application: expected STREAMFOLD_TABLE_MAIN for table 'main'."


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        (Settings(), []),
        (Settings(indexes={"songs": "prod-{tenant}"}), []),
        (Settings(indexes={"song": "x"}), [f"STREAMFOLD_INDEX_SONG {OF_SONGS} Did you mean STREAMFOLD_INDEX_SONGS?"]),
        (Settings(indexes={"other": "x"}), [f"STREAMFOLD_INDEX_OTHER {OF_SONGS} It has no effect."]),
        (Settings(tables={"mian": "x"}), [f"STREAMFOLD_TABLE_MIAN {OF_MAIN} Did you mean STREAMFOLD_TABLE_MAIN?"]),
    ],
)
def test_settings_that_name_nothing_are_told_with_the_near_name(settings, texts):
    assert undeclared_names(application("songs-{tenant}"), settings) == texts


def test_a_setting_for_an_index_of_an_application_without_searches_has_no_effect():
    (text,) = undeclared_names(App("shop", routers=[]), Settings(indexes={"songs": "x"}))
    assert text == (
        "STREAMFOLD_INDEX_SONGS names no index of the application: expected none, as it has no index. It has no effect."
    )


@pytest.mark.parametrize("real", ["songs", "prod-{land}", "prod-{tenant}-{land}"])
def test_a_real_name_without_the_fields_of_its_index_is_refused_when_a_function_starts(real):
    with pytest.raises(SettingsError, match=r"STREAMFOLD_INDEX_SONGS='.*': expected the fields \{tenant\}"):
        check_settings(application("songs-{tenant}"), Settings(indexes={"songs": real}))


def test_a_handler_that_is_switched_off_by_a_wrong_name_is_told_with_the_near_one():
    with pytest.raises(SettingsError, match="STREAMFOLD_HANDLERS_OFF names 'c'"):
        check_settings(application("a"), Settings(handlers_off=("c",)))

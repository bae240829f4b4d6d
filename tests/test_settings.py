"""Settings: read once from the environment, refused where they do not fit, and shown with their origin."""

import re

import pytest

from streamfold.errors import SettingsError
from streamfold.settings import EARLIER, Settings, environment_name, undeclared_tables
from streamfold.settings.readers import READERS, is_loopback

read = Settings.from_environment


def test_an_empty_environment_gives_the_defaults():
    assert read({}) == Settings()
    assert read({"PATH": "/bin", "STREAM": "x"}) == Settings()


def test_a_process_serves_its_own_group_or_all():
    assert Settings(group="slow").serves("slow")
    assert not Settings(group="slow").serves("main")
    assert Settings().serves("main")


def test_a_process_runs_the_handlers_of_its_group_that_are_not_off():
    settings = Settings(group="slow", handlers_off=("spend",))
    assert settings.runs("visits", "slow")
    assert not settings.runs("spend", "slow")
    assert not settings.runs("visits", "main")


def test_the_defaults_are_those_of_the_documents():
    values = [value for _, value, _, _ in Settings().described()]
    search = ["-", "-", "-", "-", "-", "-"]
    assert values == [
        *"---------",
        "0",
        "100",
        "8",
        "30",
        "12",
        "-",
        "-",
        "-",
        *search,
        "-",
        "900",
        "off",
        "lines",
        "off",
        "-",
    ]


@pytest.mark.parametrize(
    ("name", "text", "setting", "value"),
    [
        ("STREAMFOLD_APP", "shop.handlers:app", "app", "shop.handlers:app"),
        ("STREAMFOLD_ENGINE", "embedded:shop.db", "engine", "embedded:shop.db"),
        ("STREAMFOLD_STATE_TABLE", "shop-state", "state_table", "shop-state"),
        ("STREAMFOLD_GROUP", "slow", "group", "slow"),
        ("STREAMFOLD_OLDER_CODE", "on", "older_code", True),
        ("STREAMFOLD_EPOCH", "99", "epoch", 99),
        ("STREAMFOLD_CHUNK_ACTIONS", "100", "chunk_actions", 100),
        ("STREAMFOLD_LANES", "32", "lanes", 32),
        ("STREAMFOLD_RETENTION_DAYS", "30", "retention_days", 30),
        ("STREAMFOLD_RETENTION_DAYS", "3650", "retention_days", 3650),
        ("STREAMFOLD_STOP_SECONDS", "11", "stop_seconds", 11),
        ("STREAMFOLD_STOP_SECONDS", "900", "stop_seconds", 900),
        ("STREAMFOLD_PARK", "s3://failures/parked", "park", "s3://failures/parked"),
        (
            "STREAMFOLD_JOBS",
            "https://sqs.eu-west-1.amazonaws.com/1/bell",
            "jobs",
            "https://sqs.eu-west-1.amazonaws.com/1/bell",
        ),
        (
            "STREAMFOLD_JOBS",
            "http://localhost:4566/000000000000/bell",
            "jobs",
            "http://localhost:4566/000000000000/bell",
        ),
        ("STREAMFOLD_JOBS", "http://127.0.0.1:4566/0/bell", "jobs", "http://127.0.0.1:4566/0/bell"),
        ("STREAMFOLD_JOBS", "http://[::1]:4566/0/bell", "jobs", "http://[::1]:4566/0/bell"),
        ("STREAMFOLD_HANDLERS_OFF", "totals, audit,totals", "handlers_off", ("totals", "audit")),
        ("STREAMFOLD_GATE_SECONDS", "0", "gate_seconds", 0),
        ("STREAMFOLD_OBSERVE", "lines", "observe", "lines"),
        ("STREAMFOLD_OBSERVE", "powertools", "observe", "powertools"),
        ("STREAMFOLD_OBSERVE", "traced", "observe", "traced"),
        ("STREAMFOLD_OBSERVE", "off", "observe", "off"),
        ("STREAMFOLD_OLDER_CODE", "FALSE", "older_code", False),
        ("STREAMFOLD_OLDER_CODE", "1", "older_code", True),
        ("STREAMFOLD_SEARCH", "https://search.example/cluster/", "search", "https://search.example/cluster"),
        ("STREAMFOLD_SEARCH", "http://localhost:9200", "search", "http://localhost:9200"),
        ("STREAMFOLD_SEARCH", "http://127.0.0.1:9200/", "search", "http://127.0.0.1:9200"),
        ("STREAMFOLD_SEARCH", "http://[::1]:9200", "search", "http://[::1]:9200"),
        ("STREAMFOLD_SEARCH_SERVICE", "aoss", "search_service", "aoss"),
        ("STREAMFOLD_SEARCH_USER", "fold", "search_user", "fold"),
        ("STREAMFOLD_SEARCH_PASSWORD", "hush", "search_password", "hush"),
        ("STREAMFOLD_SEARCH_CA", "/etc/authority.pem", "search_ca", "/etc/authority.pem"),
        ("STREAMFOLD_AUDIT_KEY", "k" * 32, "audit_key", b"k" * 32),
        ("STREAMFOLD_AUDIT_KEY", "\u00fc" * 16, "audit_key", "\u00fc".encode() * 16),
    ],
)
def test_a_setting_is_read_with_its_origin(name, text, setting, value):
    found = read({name: text})
    assert value == getattr(found, setting)
    assert found.origins == {setting: name}


def test_a_secret_is_shown_nowhere():
    secret = "hush" * 8
    found = read({"STREAMFOLD_AUDIT_KEY": secret})
    assert ("STREAMFOLD_AUDIT_KEY", "set", "STREAMFOLD_AUDIT_KEY") in [row[:3] for row in found.described()]
    assert "hush" not in f"{found!r} {found.described()}"
    with pytest.raises(SettingsError, match="STREAMFOLD_AUDIT_KEY has 31 bytes: expected 32 or more, drawn at") as told:
        read({"STREAMFOLD_AUDIT_KEY": secret[1:]})
    assert "hush" not in str(told.value)


def test_a_password_is_shown_nowhere():
    found = read({"STREAMFOLD_SEARCH_PASSWORD": "hush"})
    assert ("STREAMFOLD_SEARCH_PASSWORD", "set", "STREAMFOLD_SEARCH_PASSWORD") in [row[:3] for row in found.described()]
    assert "hush" not in f"{found!r} {found.described()}"


def test_a_password_in_a_url_is_refused_and_not_quoted():
    with pytest.raises(SettingsError, match="STREAMFOLD_SEARCH_PASSWORD name a user") as told:
        read({"STREAMFOLD_SEARCH": "https://fold:hush@search.example"})
    assert "hush" not in str(told.value)


def test_a_password_in_a_queue_s_url_is_refused_and_not_quoted():
    with pytest.raises(SettingsError, match="STREAMFOLD_JOBS is no URL of a standard queue") as told:
        read({"STREAMFOLD_JOBS": "https://fold:hush@sqs.example/1/bell"})
    assert "hush" not in str(told.value)


def test_every_setting_can_be_read():
    names = set(Settings._fields)
    assert names == {*READERS, "tables", "indexes", "destinations", "roles", "origins"}


def test_the_real_names_of_indexes_are_read():
    found = read({"STREAMFOLD_INDEX_PRODUCTS": "shop-prod-products", "STREAMFOLD_INDEX_SONGS_2": "songs-v2"})
    assert found.index_name("products") == "shop-prod-products"
    assert found.index_name("songs-2") == "songs-v2"
    assert found.index_name("orders") == "orders"
    assert found.origins == {"indexes": "STREAMFOLD_INDEX_<NAME>"}
    assert ("STREAMFOLD_INDEX_<NAME>", "products=shop-prod-products, songs_2=songs-v2") in [
        row[:2] for row in found.described()
    ]


def test_the_real_names_of_tables_are_read():
    found = read({"STREAMFOLD_TABLE_SHOP": "shop-prod", "STREAMFOLD_TABLE_OLD_SHOP": "archive"})
    assert found.real_name("shop") == "shop-prod"
    assert found.real_name("old-shop") == "archive"
    assert found.real_name("other") is None


@pytest.mark.parametrize("variable", ["OLD.SHOP", "old-shop", "OLD_SHOP", "Old_Shop"])
def test_a_name_counts_in_whatever_spelling_it_is_set(variable):
    found = read({f"STREAMFOLD_TABLE_{variable}": "archive", f"STREAMFOLD_INDEX_{variable}": "old"})
    assert (found.real_name("old-shop"), found.index_name("old_shop")) == ("archive", "old")


def test_two_spellings_of_a_name_with_two_values_are_refused():
    assert read({"STREAMFOLD_TABLE_SHOP": "x", "STREAMFOLD_TABLE_shop": "x"}).real_name("shop") == "x"
    with pytest.raises(SettingsError, match=r"STREAMFOLD_TABLE_shop is given twice, .* two values: keep one"):
        read({"STREAMFOLD_TABLE_SHOP": "x", "STREAMFOLD_TABLE_shop": "y"})


def test_a_name_that_is_given_exactly_comes_before_the_environment_s():
    assert Settings(tables={"Shop": "exact", "shop": "other"}).real_name("Shop") == "exact"


@pytest.mark.parametrize(("logical", "name"), [("shop", "SHOP"), ("old-shop.2", "OLD_SHOP_2")])
def test_a_table_s_name_is_spelled_for_the_environment(logical, name):
    assert name == environment_name(logical)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "STREAMFOLD_OTHER",
            "1",
            "Setting STREAMFOLD_OTHER is not known: expected STREAMFOLD_APP, STREAMFOLD_ARCHIVE",
        ),
        ("STREAMFOLD_EPOCHS", "1", "Setting STREAMFOLD_EPOCHS is not known. Did you mean STREAMFOLD_EPOCH?"),
        ("STREAMFOLD_TABLE", "x", "Setting STREAMFOLD_TABLE is not known. Did you mean STREAMFOLD_TABLE_<NAME>?"),
        ("STREAMFOLD_TABLE_", "x", "Setting STREAMFOLD_TABLE_ is not known. Did you mean STREAMFOLD_TABLE_<NAME>?"),
        ("STREAMFOLD_TABLE_SHOP", "", "Setting STREAMFOLD_TABLE_SHOP is empty: give a value or leave it out."),
        ("STREAMFOLD_GROUP", "", "Setting STREAMFOLD_GROUP is empty: give a value or leave it out."),
        ("STREAMFOLD_ENGINE", "shop.db", "Setting STREAMFOLD_ENGINE='shop.db' names no engine: expected embedded:FILE"),
        ("STREAMFOLD_ENGINE", "embedded:", "STREAMFOLD_ENGINE='embedded:' names no engine: expected embedded:FILE"),
        ("STREAMFOLD_EPOCH", "100", "Setting STREAMFOLD_EPOCH='100' does not fit: expected a whole number from 0 to"),
        ("STREAMFOLD_EPOCH", "-1", "Setting STREAMFOLD_EPOCH='-1' does not fit: expected a whole number from 0 to 99."),
        ("STREAMFOLD_EPOCH", "²", "Setting STREAMFOLD_EPOCH='²' does not fit: expected a whole number from 0 to 99."),
        ("STREAMFOLD_CHUNK_ACTIONS", "1", "Setting STREAMFOLD_CHUNK_ACTIONS='1' does not fit: expected a whole"),
        pytest.param("STREAMFOLD_EPOCH", "1" * 5000, "1...11111111", id="more digits than Python reads"),
        ("STREAMFOLD_CHUNK_ACTIONS", "101", "expected a whole number from 2 to 100."),
        ("STREAMFOLD_LANES", "0", "expected a whole number from 1 to 32."),
        ("STREAMFOLD_RETENTION_DAYS", "29", "expected a whole number from 30 to 3650."),
        ("STREAMFOLD_RETENTION_DAYS", "3651", "expected a whole number from 30 to 3650."),
        ("STREAMFOLD_STOP_SECONDS", "901", "expected a whole number from 11 to 900."),
        (
            "STREAMFOLD_JOBS",
            "http://sqs.eu-west-1.amazonaws.com/1/bell",
            "is not encrypted: expected https://sqs.REGION.",
        ),
        ("STREAMFOLD_JOBS", "http://127.example.com/1/bell", "is not encrypted: expected https://sqs.REGION."),
        ("STREAMFOLD_JOBS", "https://sqs.eu-west-1.amazonaws.com", "is no URL of a standard queue"),
        ("STREAMFOLD_JOBS", "http://localhost:4566", "is no URL of a standard queue"),
        ("STREAMFOLD_JOBS", "http://localhost:port/0/bell", "is no URL of a standard queue"),
        ("STREAMFOLD_JOBS", "http://localhost:4566/0/bell.fifo", "not a FIFO queue"),
        ("STREAMFOLD_JOBS", "bell", "is no URL of a standard queue"),
        ("STREAMFOLD_OLDER_CODE", "yes", "Setting STREAMFOLD_OLDER_CODE='yes' is no switch: expected on or off."),
        (
            "STREAMFOLD_OBSERVE",
            "on",
            "Setting STREAMFOLD_OBSERVE='on' is not known: expected lines, powertools, traced, off.",
        ),
        ("STREAMFOLD_LOGGER", "on", "Setting STREAMFOLD_LOGGER is not known. STREAMFOLD_OBSERVE sets"),
        ("STREAMFOLD_METRICS", "on", "Setting STREAMFOLD_METRICS is not known. STREAMFOLD_OBSERVE sets"),
        ("STREAMFOLD_POWERTOOLS", "on", "Setting STREAMFOLD_POWERTOOLS is not known. STREAMFOLD_OBSERVE sets"),
        ("STREAMFOLD_TRACER", "on", "Setting STREAMFOLD_TRACER is not known. STREAMFOLD_OBSERVE sets"),
        ("STREAMFOLD_SEARCH_GZIP", "on", "Setting STREAMFOLD_SEARCH_GZIP is not known."),
        ("STREAMFOLD_SEARCH_BULK_BYTES", "10000", "Setting STREAMFOLD_SEARCH_BULK_BYTES is not known."),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_with_what_was_expected(name, text, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        read({name: text})


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings().epoch = 1


def test_every_setting_is_described_with_value_origin_and_meaning():
    described = read({"STREAMFOLD_EPOCH": "1", "STREAMFOLD_OLDER_CODE": "on", "STREAMFOLD_TABLE_SHOP": "x"}).described()
    rows = {name: (value, origin) for name, value, origin, _ in described}
    assert rows["STREAMFOLD_EPOCH"] == ("1", "STREAMFOLD_EPOCH")
    assert rows["STREAMFOLD_OLDER_CODE"] == ("on", "STREAMFOLD_OLDER_CODE")
    assert rows["STREAMFOLD_TABLE_<NAME>"] == ("shop=x", "STREAMFOLD_TABLE_<NAME>")
    assert rows["STREAMFOLD_STATE_TABLE"] == ("-", "default")
    assert rows["STREAMFOLD_OBSERVE"] == ("lines", "default")
    assert all(meaning for *_, meaning in described)


@pytest.mark.parametrize(
    ("variable", "declared", "message"),
    [
        ("SHPO", ["shop", "music"], "Did you mean STREAMFOLD_TABLE_SHOP?"),
        ("SHPO", ["shop", "music"], "expected STREAMFOLD_TABLE_SHOP for table 'shop', STREAMFOLD_TABLE_MUSIC for"),
        ("ARCHIVE", ["old-shop"], "expected STREAMFOLD_TABLE_OLD_SHOP for table 'old-shop'. It has no effect."),
    ],
)
def test_a_table_that_is_not_declared_is_told_with_the_nearest_name(variable, declared, message):
    (text,) = undeclared_tables(read({f"STREAMFOLD_TABLE_{variable}": "x"}), declared)
    assert text.startswith(f"STREAMFOLD_TABLE_{variable} names no table of the application: expected ")
    assert message in text


@pytest.mark.parametrize("logical", ["Old-Shop", "old_shop", "OLD.SHOP"])
def test_a_declared_table_is_found_whatever_its_case_and_punctuation(logical):
    assert undeclared_tables(read({"STREAMFOLD_TABLE_OLD_SHOP": "x"}), [logical]) == []


@pytest.mark.parametrize("url", ["http://localhost:9200", "http://127.0.0.1", "http://127.8.0.1:1", "http://[::1]:80"])
def test_urls_of_this_machine_are_told(url):
    assert is_loopback(url)


@pytest.mark.parametrize("url", [None, "", "http://127.example.com", "http://10.0.0.1", "http://localhost.example.com"])
def test_urls_of_other_machines_are_told_even_if_a_name_begins_like_an_address(url):
    assert not is_loopback(url)


@pytest.mark.parametrize("name", ["LOGGER", "METRICS", "POWERTOOLS", "TRACER"])
def test_a_setting_of_an_earlier_commit_names_the_one_in_its_place(name):
    with pytest.raises(SettingsError, match=rf"STREAMFOLD_{name} is not known\. STREAMFOLD_OBSERVE sets"):
        Settings.from_environment({f"STREAMFOLD_{name}": "on"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("FUNCTION", "STREAMFOLD_GROUP names"), ("SEARCH_GZIP", "gone"), ("SEARCH_BULK_BYTES", "5 MB")],
)
def test_a_setting_that_is_gone_says_what_holds_now(name, expected):
    with pytest.raises(SettingsError, match=expected):
        Settings.from_environment({f"STREAMFOLD_{name}": "on"})


def test_settings_of_earlier_commits_are_none_of_now():
    assert not EARLIER.keys() & {*Settings._fields}


def test_the_addresses_of_destinations_are_read():
    found = read({"STREAMFOLD_PUBLISH_ORDERS_FIFO": "arn:there", "STREAMFOLD_PUBLISH": "file:out"})
    assert found.destination("orders.fifo") == "arn:there"
    assert found.destination("shop") is None
    assert found.publish == "file:out"


def test_messages_go_to_a_folder_only():
    with pytest.raises(SettingsError, match="file:FOLDER"):
        read({"STREAMFOLD_PUBLISH": "s3://bucket"})

"""``streamfold routes``: the key chart, and what a key is taken for."""

import json

import pytest

from tests.helpers.source import Source

APP = """
from streamfold import App, Count, Key, Router, Row, Sum, Table

DEVICES = Table("devices", partition="Id", sort=None)
ORDER = Key("ORDER#{number:06d}", "METADATA")
ITEM = Key("ORDER#{number:06d}", "ITEM#{sku}")
TOTAL = Key("ORDER#{number:06d}", "TOTAL")
router = Router()
router.audit(ORDER, name="audit")


@router.view(ITEM, into=TOTAL)
def order_total(item):
    yield Row(total=Sum(item["price"]))


@router.on(ORDER, external=True, group="mails")
def send_mail(change):
    pass


@router.view(Key("{id:number}", table=DEVICES), into=Key("ALL", "DEVICES"))
def devices(item):
    yield Row(devices=Count())


app = App("shop", routers=[router])
"""


@pytest.fixture
def folder(folder):
    folder.app(APP)
    return folder


def test_an_application_without_handlers_is_told_how_to_get_some(folder):
    folder.app('from streamfold import App\n\napp = App("shop", routers=[])')

    assert folder.run("routes").out.startswith(
        "Application 'shop' has no handler: name modules that declare some, App("
    )


def test_every_route_has_source_handler_group_kind_target_guard_and_place(folder):
    routes = {route["handler"]: route for route in folder.run("routes", "--json").objects()}

    assert routes["order_total"] == {
        "sources": ["ORDER#{number:06d} / ITEM#{sku}"],
        "handler": "order_total",
        "group": "main",
        "kind": "view",
        "targets": ["ORDER#{number:06d} / TOTAL"],
        "guard": "ledger",
        "on_error": "retry",
        "declared_at": "handlers.py:12",
    }
    assert (routes["send_mail"]["group"], routes["send_mail"]["kind"], routes["send_mail"]["guard"]) == (
        "mails",
        "external",
        "idempotency",
    )
    assert routes["audit"]["targets"] == ["AUDIT#{item:rest} / {version:rest}"]
    assert routes["devices"]["sources"] == ["devices: {id:number}"]


COUNTS = """
from streamfold import App, Count, Key, Router, Row

router = Router()


@router.view(Key("A#{a}", "X"), into=Key("ONE", "X"))
def one(item):
    yield Row(items=Count())

"""
MORE = """
@router.view(Key("A#{a}", "X"), into=Key("TWO", "X"))
def two(item):
    yield Row(items=Count())

"""


def test_handler_that_is_new_to_a_state_is_shown_as_partial(folder):
    source = Source()
    records = folder.records(source.put("A#1", "X"))
    folder.app(COUNTS + 'app = App("shop", routers=[router])')
    assert folder.run("replay", records, "--state", "shop.db").code == 0
    folder.app(COUNTS + MORE + 'app = App("shop", routers=[router])')
    ran = folder.run("replay", folder.records(source.put("A#2", "X")), "--state", "shop.db")
    assert "Warning: Handler 'two' is partial since 20" in ran.err

    since = {
        each["handler"]: each["partial_since"]
        for each in folder.run("routes", "--state", "shop.db", "--json").objects()
    }
    assert (since["one"], since["two"][:2]) == (None, "20")
    assert "partial since" in (shown := folder.run("routes", "--state", "shop.db").out)
    assert since["two"] in shown
    assert "partial" not in folder.run("routes").out


@pytest.mark.parametrize(
    ("name", "said"), [("shop", "No handler is partial."), ("blog", "The state does not know application 'blog'")]
)
def test_a_state_with_nothing_to_tell_is_said_to_be_whole_or_anothers(folder, name, said):
    folder.app(COUNTS + 'app = App("shop", routers=[router])')
    assert folder.run("replay", folder.records(Source().put("A#1", "X")), "--state", "shop.db").code == 0
    folder.app(COUNTS + f'app = App("{name}", routers=[router])')
    assert said in folder.run("routes", "--state", "shop.db").out


def test_a_handler_that_is_new_to_a_state_is_told(folder):
    folder.app(COUNTS + 'app = App("shop", routers=[router])')
    assert folder.run("replay", folder.records(Source().put("A#1", "X")), "--state", "shop.db").code == 0
    folder.app(COUNTS + MORE + 'app = App("shop", routers=[router])')
    ran = folder.run("routes", "--state", "shop.db")
    assert "New to this state: two. Older items count from their next change on" in ran.out
    assert "No handler is partial" not in ran.out


@pytest.mark.parametrize("command", ["routes", "show", "verify"])
def test_an_empty_name_of_a_state_is_refused(folder, command):
    ran = folder.run(command, "--state", "")
    assert (ran.code, ran.err) == (2, "Error: --state is empty: expected the name of a file.\n")


def test_older_code_shows_with_the_state_what_it_lacks(folder, monkeypatch):
    source = Source()
    records = folder.records(source.put("A#1", "X"))
    folder.app(COUNTS + MORE + 'app = App("shop", routers=[router])')
    assert folder.run("replay", records, "--state", "shop.db").code == 0
    folder.app(COUNTS + 'app = App("shop", routers=[router])')
    refused = folder.run("replay", records, "--state", "shop.db")
    assert (refused.code, "STREAMFOLD_OLDER_CODE=on lets it run" in refused.err) == (2, True)
    monkeypatch.setenv("STREAMFOLD_OLDER_CODE", "on")
    assert "Warning: Handler 'two' is partial since 20" in folder.run("replay", records, "--state", "shop.db").err
    assert (
        "Handlers of the state that this application does not have: two, partial since 20"
        in folder.run("routes", "--state", "shop.db").out
    )


def test_table_for_a_person_leaves_out_what_is_the_default_of_all(folder):
    ran = folder.run("routes")

    assert ran.out.splitlines()[0].split() == [
        "sources",
        "handler",
        "group",
        "kind",
        "targets",
        "guard",
        "declared",
        "at",
    ]
    assert "ORDER#{number:06d} / ITEM#{sku}  order_total  main" in ran.out


def test_group_and_policy_have_a_column_only_where_they_differ(folder):
    folder.app(APP.replace(', group="mails"', ', on_error="park"'))

    assert folder.run("routes").out.split("\n")[0].split() == (
        ["sources", "handler", "kind", "targets", "guard", "on", "error", "declared", "at"]
    )


def test_key_is_shown_with_the_template_fields_and_handlers_that_it_matches(folder):
    ran = folder.run("routes", "--key", "ORDER#000012", "ITEM#a")

    assert ran.code == 0
    assert ran.out == "ORDER#{number:06d} / ITEM#{sku}  number=12 sku=a  -> order_total\n"


def test_key_that_matches_is_json_with_fields(folder):
    (found,) = folder.run("routes", "--key", "ORDER#000012", "METADATA", "--json").objects()

    assert found == {
        "template": "ORDER#{number:06d} / METADATA",
        "fields": {"number": 12},
        "handlers": ["audit", "send_mail"],
    }


@pytest.mark.parametrize(("columns", "whole"), [(None, True), ("40", False)])
def test_what_goes_to_a_file_is_as_wide_as_it_is_unless_a_width_is_asked_for(folder, monkeypatch, columns, whole):
    name = "orders_by_the_day_on_which_they_were_placed_and_paid"
    folder.app(APP.replace("order_total", name))
    monkeypatch.delenv("COLUMNS")
    if columns:
        monkeypatch.setenv("COLUMNS", columns)

    lines = folder.run("routes").out.splitlines()

    place = "ORDER#{number:06d} / ITEM#{sku}"
    assert any(place in line and name in line for line in lines) == whole


def test_where_a_table_would_break_its_lines_each_handler_has_lines_of_its_own(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = folder.run("routes").out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("order_total  ("))
    assert "view, guard ledger, handlers.py:" in lines[place]
    assert lines[place + 1 : place + 3] == [
        "    ORDER#{number:06d} / ITEM#{sku}",
        "    -> ORDER#{number:06d} / TOTAL",
    ]


def test_field_of_the_nearest_template_that_does_not_match_is_named(folder):
    ran = folder.run("routes", "--key", "ORDER#12", "ITEM#a")

    assert "ORDER#{number:06d} / ITEM#{sku} would match, but '12' cannot be the value of {number:06d}" in ran.out
    assert "handlers.py:6" in ran.out
    assert "No handler reads this key." in ran.out


def test_key_of_a_derived_row_is_told(folder):
    assert "This is the key of a derived row" in folder.run("routes", "--key", "ORDER#000012", "TOTAL").out


def test_templates_that_a_key_begins_like_are_named(folder):
    ran = folder.run("routes", "--key", "ORDER#000012", "ITEMS#a")

    assert ran.out == "It begins most like ORDER#{number:06d} / ITEM#{sku}.\nNo handler reads this key.\n"


def test_templates_that_a_key_begins_like_are_json(folder):
    (found,) = folder.run("routes", "--key", "ORDER", "X", "--json").objects()

    assert found == {"nearest": ["ORDER#{number:06d} / METADATA", "ORDER#{number:06d} / ITEM#{sku}"]}


def test_key_that_is_far_from_all_is_told_with_all_templates(folder):
    ran = folder.run("routes", "--key", "PROFILE#1", "METADATA")

    assert ran.out == (
        "It begins like none of the templates ORDER#{number:06d} / METADATA, ORDER#{number:06d} / ITEM#{sku}.\n"
        "No handler reads this key.\n"
    )


def test_number_key_of_a_table_without_a_sort_key_is_given_alone(folder):
    assert folder.run("routes", "--key", "101").out == "devices: {id:number}  id=101  -> devices\n"


def test_sort_key_alone_is_refused(folder):
    ran = folder.run("routes", "ITEM#a")

    assert ran.code == 2
    assert "--key" in ran.err


def test_templates_of_another_table_that_a_partition_alone_begins_like_are_named_with_what_is_missing(folder):
    ran = folder.run("routes", "--key", "ORDER#000012")

    assert ran.out == (
        "It begins most like ORDER#{number:06d} / METADATA, ORDER#{number:06d} / ITEM#{sku}, which have a sort key: "
        "add it, --key PARTITION SORT.\nNo handler reads this key.\n"
    )


def test_templates_that_have_no_sort_key_are_named_to_a_key_with_one(folder):
    folder.app(
        APP.replace(
            'Key("{id:number}", table=DEVICES)',
            'Key("DEVICE#{id}", table=Table("devices", partition="id", sort=None))',
        )
    )

    ran = folder.run("routes", "--key", "DEVICE#1", "X")

    assert ran.out == (
        "It begins most like devices: DEVICE#{id}, which has no sort key: give the partition only, --key PARTITION.\n"
        "No handler reads this key.\n"
    )


def test_partition_alone_is_refused_where_every_table_has_a_sort_key(folder):
    folder.app(APP.partition('@router.view(Key("{id:number}"')[0] + 'app = App("shop", routers=[router])\n')

    ran = folder.run("routes", "--key", "ORDER#000012")

    assert ran.code == 2
    assert ran.err == "Error: --key 'ORDER#000012': table main has a sort key, SK; add it: --key PARTITION SORT.\n"


TENANTS = """
from streamfold import App, Key, Router, Row, Sum

ITEM = Key("{shop}#ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("{shop}#ORDER#{order_id}", "TOTAL")
router = Router()


@router.view(ITEM, into=TOTAL)
def order_total(item):
    yield Row(total=Sum(item["price"]))


app = App("shop", routers=[router], tenant="shop")
"""


def test_chart_of_an_application_with_tenants_shows_their_field(folder):
    folder.app(TENANTS)
    assert [route["tenant"] for route in folder.run("routes", "--json").objects()] == ["shop"]
    assert folder.run("routes").out.endswith("\nTenants are kept apart by {shop}, which every source and target has.\n")


def test_chart_of_an_application_without_tenants_says_nothing_of_them(folder):
    assert "tenant" not in folder.run("routes", "--json").out.lower() + folder.run("routes").out.lower()


def test_a_handler_that_looks_up_what_its_items_make_is_warned_about(folder):
    folder.app(
        """
from streamfold import App, Count, Key, Lookup, Router, Row

ORDER, CUSTOMER = Key("ORDER#{order_id}", "META"), Key("CUSTOMER#{customer_id}", "META")
AGENT = Key("AGENT#{agent_id}", "META")
TOTAL = Key("CUSTOMER#{customer_id}", "TOTAL")
router = Router()
router.view(ORDER, into=TOTAL, name="totals")(lambda order: Row(customer_id=order["customer_id"], orders=Count()))
router.index(ORDER, into=Key("RANK#{order_id}", "META"), lookup={"total": TOTAL}, name="ranks")(
    lambda order, total: Row(of=total["orders"])
)
router.index(ORDER, into=Key("NAME#{order_id}", "META"), lookup={"customer": CUSTOMER}, name="names")(
    lambda order, customer: Row(name=customer["name"])
)
router.attributes(ORDER, of=AGENT, name="on_agents")(lambda order: Row(agent_id=order["agent_id"], of_agent=Count()))
router.index(ORDER, into=Key("LOAD#{order_id}", "META"), lookup={"agent": AGENT}, name="loads")(
    lambda order, agent: Row(of=agent["of_agent"])
)
app = App("shop", routers=[router])
"""
    )
    ran = folder.run("routes")
    assert ran.code == 0
    assert ran.err.count("Warning: ranks looks up rows of totals, which are made of the same items: each change") == 1
    assert "names looks up" not in ran.err
    rows = {row["handler"]: row for row in map(json.loads, folder.run("routes", "--json").out.splitlines())}
    found = {name: row.get("looks_up_rows_of_its_items") for name, row in rows.items()}
    assert found == {"totals": None, "ranks": ["totals"], "names": None, "on_agents": None, "loads": ["on_agents"]}


LOOKED_UP = """
from streamfold import App, Count, Key, Lookup, Router, Row, Table

LINE, ROW = Key("L#{l}", "X"), Key("R#{c}", "T")
NUMBER = Key("{p:number}", table=Table("numbers", partition="id", sort=None))
router = Router()


@router.view(LINE, into=ROW, lookup={"number": Lookup(NUMBER, p="by")})
def sales(line, number):
    return Row(c=number["c"], n=Count())


app = App("sums", routers=[router])
"""


def test_key_of_a_table_that_only_a_lookup_names_is_shown_with_its_handler(folder):
    folder.app(LOOKED_UP)
    assert folder.run("routes", "--key", "7").out == "numbers: {p:number}  p=7  -> sales\n"
    assert "It begins like none of the templates numbers: {p:number}." in folder.run("routes", "--key", "x").out


def written_to_a_target(folder):
    """A recording with an item at the key of a target that no handler put, which is removed, and with a row."""
    source = Source()
    own, row = source.put("ORDER#000001", "TOTAL", total=500), source.put("ORDER#000002", "TOTAL", total=5, _sf_n=1)
    return folder.records(own, source.remove("ORDER#000001", "TOTAL"), row, source.put("ORDER#000001", "METADATA"))


WRITTEN = (
    "2 records are of items at keys of ORDER#{number:06d} / TOTAL, the target of order_total, and no handler put them"
)


def test_items_of_a_recording_at_the_keys_of_rows_are_warned_of(folder):
    ran = folder.run("routes", "--recording", written_to_a_target(folder))
    assert ran.code == 0
    assert WRITTEN in " ".join((ran.out + ran.err).split())


def test_a_recording_with_rows_alone_gives_no_warning(folder):
    recording = folder.records(Source().put("ORDER#000002", "TOTAL", total=5, _sf_n=1))
    ran = folder.run("routes", "--recording", recording)
    assert "no handler put" not in ran.out + ran.err


@pytest.mark.parametrize("command", [["replay"], ["dev", "--once"]])
def test_a_replay_warns_of_them_too(folder, command):
    recording = written_to_a_target(folder)
    ran = folder.run(*command, recording)
    assert WRITTEN in " ".join((ran.out + ran.err).split())
    found = json.loads(folder.run(*command, recording, "--json").out)
    assert found["items_at_rows"] == {"main: ORDER#{number:06d} / TOTAL": 2}

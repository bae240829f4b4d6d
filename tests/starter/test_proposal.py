"""Applications that are proposed from files: what they read, what they refuse, and that they work at once."""

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from functools import cache
from pathlib import Path

import pytest

from streamfold import Table
from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN
from streamfold.starter import samples
from streamfold.starter.project import imported, project_from
from streamfold.starter.proposal import propose
from streamfold.starter.samples import SORT_NAMES, read_sample
from streamfold.testing import KinesisTwin, TableTwin
from tests.helpers import here
from tests.helpers.commands import ROOT, environment, streamfold
from tests.helpers.exports import write_export

EVENTS = ROOT / "events"
SHOP = str(EVENTS / "shop.jsonl")


def written(path, records):
    path.write_text(
        "".join(json.dumps(record, default=lambda each: b64encode(each).decode()) + "\n" for record in records)
    )
    return str(path)


def recording(path, items, table=None, key_types=None, real_name=None):
    """A file with the records of a table to which these items are written."""
    twin = TableTwin(table or Table("main"), key_types=key_types, real_name=real_name)
    for item in items:
        twin.put(item)
    return written(path, [record for shard in twin.stream.shards for record in shard.records])


def orders(number=20):
    return [{"PK": f"ORDER#o-{n}", "SK": "METADATA", "total": n, "at": f"2026-03-0{1 + n % 9}"} for n in range(number)]


@cache
def of_shop():
    return propose(SHOP, "shop")


def chart_lines(proposal):
    return [line for line in proposal.files["shop/keys.py"].splitlines() if "Key(" in line or "= Table(" in line]


def test_the_files_have_the_chart_the_types_a_view_its_tests_and_a_recording():
    proposal = of_shop()
    assert list(proposal.files) == [
        "shop/keys.py", "shop/totals.py", "tests/test_totals.py", "events/recorded.jsonl", "shop/__init__.py"
    ]  # fmt: skip
    assert chart_lines(proposal)[-1] == 'CUSTOMER = Key("CUSTOMER#{customer_id}", "PROFILE")'
    assert "    tags: NotRequired[set[str]]  # often: in " in proposal.files["shop/keys.py"]
    assert 300 <= len(proposal.files["events/recorded.jsonl"].splitlines()) <= 400


def test_no_value_that_was_replaced_is_in_a_file():
    # An id such as c-001 may be its own substitute: it has one letter, and 1 stays.
    values = ("@example.com", "Chidi", "Rua", "28565193273333573402251743672275103124")
    assert not [path for path, text in of_shop().files.items() if any(value in text for value in values)]


def test_values_are_kept_where_that_is_asked_for():
    proposal = propose(SHOP, "shop", keep_values=True)
    lines = [text.splitlines()[0] for text in (proposal.files["events/recorded.jsonl"], Path(SHOP).read_text("utf-8"))]
    assert json.loads(lines[0]) == json.loads(lines[1])
    assert proposal.kept is None


def test_the_tenants_field_is_that_of_the_application():
    proposal = propose(str(EVENTS / "tenants" / "tasks.jsonl"), "shop")
    assert 'tenant="tenant")' in proposal.files["shop/__init__.py"]
    assert 'TOTALS = Key("{tenant}#TOTAL#PROJECT_TASK", "ALL")' in proposal.files["shop/totals.py"]


def test_rows_that_streamfold_derived_are_left_out(tmp_path):
    rows = [{"PK": f"DAY#{n}", "SK": "TOTAL", "total": 3, "_sf_n": 1} for n in range(5)]
    marked = [{**order, "name": "x", "_sf_a": {"shop/names": {"name"}}} for order in orders()]
    proposal = propose(recording(tmp_path / "x.jsonl", rows + marked), "shop")
    assert [key.key.template for key in proposal.keys] == ["ORDER#{order_id} / METADATA"]
    assert proposal.sample.skipped == {"derived rows": 5}
    assert "name" not in proposal.files["shop/keys.py"].partition("class")[2]


def test_other_key_attributes_are_those_of_the_records(tmp_path):
    table = Table("main", "device", "at")
    items = [{"device": f"d-{n % 3}", "at": f"2026-03-01T10:00:{n:02d}Z", "celsius": n} for n in range(30)]
    lines = chart_lines(propose(recording(tmp_path / "x.jsonl", items, table), "shop"))
    assert lines == [
        'TABLE = Table("main", partition="device", sort="at")',
        'DEVICE = Key("{device}", "{at:datetime.seconds}", TABLE)',
    ]


def test_a_table_without_a_sort_key_and_with_expiries(tmp_path):
    items = [{"id": f"USER#u-{n}", "expires": 1_772_355_600 + n} for n in range(9)]
    lines = chart_lines(propose(recording(tmp_path / "x.jsonl", items, Table("main", "id", None)), "shop"))
    assert lines == [
        'TABLE = Table("main", partition="id", sort=None, ttl="expires")',
        'USER = Key("USER#{user_id}", table=TABLE)',
    ]


def test_two_tables_have_charts_of_their_own(tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    recording(one, orders(), real_name="orders")
    recording(other, [{"id": f"u-{n}", "name": "x"} for n in range(9)], Table("main", "id", None), real_name="users")
    both = tmp_path / "both.jsonl"
    both.write_text(one.read_text() + other.read_text())
    lines = chart_lines(propose(str(both), "shop"))
    assert 'TABLE_1 = Table("orders", partition="PK", sort="SK")' in lines
    assert 'USERS = Key("{id}", table=TABLE_2)' in lines


def test_a_recording_of_kinesis_becomes_one_of_a_stream(tmp_path):
    recording(tmp_path / "stream.jsonl", orders())
    kinesis = KinesisTwin()
    records = [kinesis.append(json.loads(line)) for line in (tmp_path / "stream.jsonl").read_text().splitlines()]
    proposal = propose(written(tmp_path / "x.jsonl", records), "shop")
    assert chart_lines(proposal) == ['ORDER = Key("ORDER#{order_id}", "METADATA")']
    assert json.loads(proposal.files["events/recorded.jsonl"].splitlines()[0])["eventSource"] == "aws:dynamodb"


def items_of_export(items):
    return [
        {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in item.items()}
        for item in items
    ]


def test_an_export_is_read_by_its_manifest(tmp_path):
    place = write_export(tmp_path, items_of_export(orders(200)), files=3, total=200)
    for path in (place, place.replace("files", "summary")):
        proposal = propose(path, "shop")
        assert chart_lines(proposal) == ['ORDER = Key("ORDER#{order_id}", "METADATA")']
        assert proposal.records == 200


@pytest.mark.parametrize("keys", [[], ["device", "at"]])
def test_the_keys_of_an_export_with_other_names_are_found_or_given(tmp_path, keys):
    items = [{"celsius": n % 7, "at": f"2026-03-01T10:00:{n % 60:02d}Z", "device": f"d-{n % 3}"} for n in range(60)]
    lines = chart_lines(propose(write_export(tmp_path, items_of_export(items)), "shop", keys=keys))
    unsure = "" if keys else "  # unsure: the key attributes of the export: device, at? (--keys)"
    assert lines[0] == f'TABLE = Table("main", partition="device", sort="at"){unsure}'


def test_a_sample_is_bounded_and_spread_over_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "ITEMS_MAX", 50)
    path = recording(tmp_path / "x.jsonl", orders(900))
    sample = read_sample(path)
    assert sample.read == 900
    assert 300 <= len(sample.records) <= 350
    assert sample.records[-1].number > 800
    monkeypatch.setattr(samples, "SAMPLE_BYTES_MAX", 2_000)
    assert len(read_sample(path).records) < 310


def test_an_export_of_many_files_is_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "FILES_MAX", 4)
    monkeypatch.setattr(samples, "ITEMS_MAX", 40)
    sample = read_sample(write_export(tmp_path, items_of_export(orders(300)), files=12, total=300))
    assert sample.read == 40
    assert sample.skipped == {"data files": 8}


def keys_only(record):
    body = {name: value for name, value in record["dynamodb"].items() if not name.endswith("Image")}
    return {**record, "dynamodb": {**body, "StreamViewType": "KEYS_ONLY"}}


def refused(path, message, **more):
    with pytest.raises(SettingsError, match=message):
        propose(str(path), "shop", **more)


def test_a_file_without_records_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    refused(tmp_path / "empty.jsonl", r"empty.jsonl has no item \(0 records read\): expected a recording of DynamoDB")
    (tmp_path / "text.jsonl").write_text("hello\n")
    refused(tmp_path / "text.jsonl", r"text.jsonl has no record: .*text.jsonl:1: this is not JSON")
    refused(tmp_path / "none.jsonl", r"none.jsonl does not exist: expected a recorded file")


def test_records_without_images_are_refused(tmp_path):
    lines = [json.loads(line) for line in Path(SHOP).read_text("utf-8").splitlines()[:9]]
    path = written(tmp_path / "x.jsonl", map(keys_only, lines))
    refused(path, r"has 9 records without images: .*Set the stream's view type to NEW_AND_OLD_IMAGES")


def test_records_without_images_among_others_are_counted(tmp_path):
    lines = [json.loads(line) for line in Path(SHOP).read_text("utf-8").splitlines()[:40]]
    proposal = propose(written(tmp_path / "x.jsonl", [*map(keys_only, lines[:2]), *lines[2:]]), "shop")
    assert proposal.sample.skipped == {"records without images": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"NewImage": {"total": {"N": "three"}}},
        {"NewImage": {"total": "3"}},
        {"NewImage": {"raw": {"B": "!"}}},
        {"OldImage": [1]},
        {"Keys": {"PK": {"BOOL": True}, "SK": {"S": "x"}}},
        {"Keys": {"PK": {}, "SK": {}}},
    ],
)
def test_malformed_records_are_counted(tmp_path, change):
    lines = [json.loads(line) for line in Path(SHOP).read_text("utf-8").splitlines()[:40]]
    lines[3] = {**lines[3], "dynamodb": {**lines[3]["dynamodb"], **change}}
    proposal = propose(written(tmp_path / "x.jsonl", lines), "shop")
    assert proposal.sample.skipped == {"malformed records": 1}


def test_only_derived_rows_are_no_items(tmp_path):
    rows = [{"PK": f"DAY#{n}", "SK": "TOTAL", "_sf_n": 1} for n in range(5)]
    refused(recording(tmp_path / "x.jsonl", rows), r"has no item \(5 records read; 5 derived rows\)")


def test_ten_thousand_shapes_are_refused(tmp_path):
    keys = [{"PK": {"S": f"TYPE{n}#1"}, "SK": {"S": "META"}} for n in range(10_000)]
    records = [{"eventName": "INSERT", "dynamodb": {"Keys": each, "NewImage": each}} for each in keys]
    refused(written(tmp_path / "x.jsonl", records), r"has over 200 shapes of keys, such as .*TYPE")


def test_one_table_with_two_sets_of_key_attributes_is_refused(tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    recording(one, orders(3))
    recording(other, [{"id": "u-1"}], Table("main", "id", None))
    one.write_text(one.read_text() + other.read_text())
    refused(one, "has records of one table with other key attributes than PK, SK")


def test_names_of_keys_that_the_records_do_not_have_are_refused():
    refused(SHOP, r"--keys id: the records have the key attributes SK, PK", keys=["id"])


def test_an_export_whose_keys_are_not_found_is_refused(tmp_path):
    items = [{"total": {"N": str(n % 2)}} for n in range(9)]
    refused(write_export(tmp_path, items), r"no attributes of its items are a key: give the names .*--keys PK,SK")


def test_an_item_without_the_given_keys_is_refused(tmp_path):
    place = write_export(tmp_path, items_of_export(orders()))
    refused(place, r"lacks a key attribute of id: give the names of the table's key attributes", keys=["id"])


def test_a_folder_that_is_not_empty_and_names_of_modules_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="is the name of a module of the template too"):
        project_from(tmp_path / "keys", SHOP, None)
    (tmp_path / "mine").write_text("mine", "utf-8")
    with pytest.raises(SettingsError, match="is not empty: expected a new folder"):
        project_from(tmp_path, SHOP, "shop")
    with pytest.raises(SettingsError, match="is no name of a package"):
        project_from(tmp_path / "new", SHOP, "1shop")


def test_nothing_is_written_for_a_file_that_is_refused(tmp_path):
    with pytest.raises(SettingsError):
        project_from(tmp_path / "new", str(tmp_path / "none.jsonl"), None)
    assert list(tmp_path.iterdir()) == []


PROJECTS = {
    "from_shop": SHOP,
    "from_music": str(EVENTS / "music.jsonl"),
    "from_tenants": str(EVENTS / "tenants" / "activity.jsonl"),
}


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """Applications from files of several sorts."""
    folder = tmp_path_factory.mktemp("projects")
    device = Table("main", "device", "at")
    readings = [{"device": bytes([n % 5, 255]), "at": 1_772_359_200 + n, "celsius": n} for n in range(40)]
    paths = {
        **PROJECTS,
        "from_bytes": recording(folder / "bytes.jsonl", readings, device, {"device": "B", "at": "N"}),
        "from_export": write_export(folder / "export", items_of_export(orders(50))),
    }
    for name, path in paths.items():
        project_from(folder / name, path, None)
    return [folder / name for name in paths]


def ran(folders, *command, **variables):
    """The output of a command in Python over several applications, and its exit code."""
    paths = os.pathsep.join([str(ROOT / "framework"), *map(str, folders)])
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folders[0].parent,
        env=environment(PYTHONPATH=paths, MYPYPATH=paths),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.ci
def test_the_new_applications_pass_their_tests(projects):
    options = ["-p", "no:cacheprovider", "--streamfold-histories=2", "--import-mode=importlib"]
    _, output = ran(projects, "pytest", "-q", *options, *projects)
    assert f"{3 * len(projects)} passed" in output, output


@pytest.mark.ci
def test_the_new_applications_pass_mypy(projects, tmp_path):
    files = [file for folder in projects for file in folder.glob("from_*/*.py")]
    for folder in projects:  # under names that differ
        file = tmp_path / f"test_{folder.name}.py"
        file.write_text((folder / "tests" / "test_totals.py").read_text("utf-8"), "utf-8")
        files.append(file)
    code, output = ran(projects, "mypy", "--strict", "--follow-imports=silent", "--config-file=", *files)
    assert code == 0, output


@pytest.mark.slow
def test_a_new_application_replays_its_recording_and_has_its_template(tmp_path):
    device = Table("main", "device", "at")
    readings = [{"device": bytes([n % 5, 255]), "at": 1_772_359_200 + n, "celsius": n} for n in range(40)]
    path = recording(tmp_path / "bytes.jsonl", readings, device, {"device": "B", "at": "N"})
    folder = tmp_path / "from_bytes"
    project_from(folder, path, None)
    replayed = streamfold("replay", "events/recorded.jsonl", folder=folder, STREAMFOLD_APP="from_bytes:app")
    assert (replayed.code, "Nothing failed." in replayed.out) == (0, True), replayed.err
    checked = streamfold("template", "--check", "template.yaml", folder=folder, STREAMFOLD_APP="from_bytes:app")
    assert (checked.code, "no difference" in checked.out) == (0, True), checked.out + checked.err


@pytest.mark.slow
def test_the_command_lists_what_stays_and_what_is_unsure(tmp_path):
    ran = here.streamfold("new", "mine", "--from", SHOP, folder=tmp_path)
    assert ran.code == 0, ran.err
    assert "Proposed 3 keys in mine/keys.py from 2,180 records: 3 doubts, each a comment there.\n" in ran.out
    assert "  table main: partition key PK, sort key SK, no time to live\n" in ran.out
    assert "  ORDER.status: cancelled, paid, placed, shipped\n" in ran.out
    assert "  literals: CUSTOMER, ITEM, METADATA, ORDER, PROFILE\n" in ran.out
    ran = here.streamfold("new", "other", "--from", SHOP, "--keep-values", "--json", folder=tmp_path)
    document = json.loads(ran.out)
    assert document["kept"] is None
    assert document["tables"][0] == {
        "name": "main", "partition": "PK", "sort": "SK", "ttl": None, "tenant": None, "unsure": []
    }  # fmt: skip
    assert document["keys"][2] == {"name": "CUSTOMER", "template": "CUSTOMER#{customer_id} / PROFILE", "unsure": []}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-values"], "--keep-values belongs to --from"),
        (["--keys", "id"], "--keys belongs to --from"),
        (["--from", SHOP, "--template", "shop"], "give it without --template"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, options, message):
    ran = here.streamfold("new", "mine", *options, folder=tmp_path)
    assert (ran.code, message in ran.err) == (2, True), ran.err


ODD_KEYS = ["class", "1st", "123", "é", "user id", "$id", "pk.sk", "None", "items", "attributes", "day", "wins", "a'b"]


@pytest.mark.parametrize("name", [*ODD_KEYS, pytest.param("x" * 60, id="long")])
def test_a_key_attribute_may_have_any_name(tmp_path, name):
    files = proposed_of(tmp_path, Table("main", name, None), [{name: f"v{n}x", "total": n} for n in range(6)])
    assert "TABLE = Table(" in files["keys"]


@pytest.mark.parametrize("literal", ["K1", "U", "A", "ITEM", "NONE", "APP", "PROOF", "TEST", "TYPED_DICT", "X-Y", "k"])
def test_a_key_may_have_any_literal(tmp_path, literal):
    items = [
        {"PK": f"{literal}#{n}", "SK": "META", "total": n, "wins": n, "attributes": 2, "items": 1} for n in range(6)
    ]
    files = proposed_of(tmp_path, MAIN, items)
    names = re.findall(r"^(?:class )?(\w+)(?: =|\()", files["keys"], re.MULTILINE)
    assert len(names) == len(set(names))


def proposed_of(tmp_path, table, items):
    """The texts of an application whose module and tests were imported, and whose plain tests passed."""
    path = recording(tmp_path / "items.jsonl", items, table)
    folder = tmp_path / "proposed_app"
    project_from(folder, path, None)  # imports it, for its template
    with imported(folder, "proposed_app"):
        tests = {}
        exec((folder / "tests/test_totals.py").read_text("utf-8"), tests)
        tests["test_an_item_is_counted"]()
        tests["test_the_totals_follow_the_items"]()
    return {"keys": (folder / "proposed_app/keys.py").read_text("utf-8")}


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("id", "type"), ("id", "type")),
        (("kind", "userId"), ("userId", "kind")),
        (("sort.key", "my-key"), ("my-key", "sort.key")),
        (("range key", "x"), ("x", "range key")),
    ],
)
def test_the_partition_key_is_guessed_and_said_to_be_a_guess(tmp_path, names, order):
    one, other = order
    items = [{one: f"v{n}x", other: "ORDER", "total": n} for n in range(6)]
    path = recording(tmp_path / "items.jsonl", items, Table("main", *names))
    ran = here.streamfold("new", "mine", "--from", path, folder=tmp_path)
    assert f"  table main: partition key {one}, sort key {other}, no time to live\n" in ran.out
    is_sure = SORT_NAMES.fullmatch(other)
    assert ("which key attribute is the partition key" in ran.out) is not bool(is_sure)
    assert ("nothing is unsure" in ran.out) is bool(is_sure)

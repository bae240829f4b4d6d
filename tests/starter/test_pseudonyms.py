"""Values are replaced: one by the same other everywhere, in their order, and rows stay as many."""

import json
import re
from base64 import b64decode, b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamfold.keys.table import MAIN
from streamfold.starter.attributes import kept_values
from streamfold.starter.chart import chart_of
from streamfold.starter.pseudonyms import KeptValues, Pseudonyms
from streamfold.starter.samples import read_sample
from streamfold.starter.shapes import SampledItem
from tests.helpers.commands import EVENTS, ROOT
from tests.helpers.replayed import recorded, rows_by_target

TENANTS = sorted((ROOT / "events" / "tenants").glob("*.jsonl"))
FIRST = 60
"""Records of a file of which a test replays the begin; .ci/run replays all."""


def record(image, **keys):
    return {
        "eventName": "INSERT",
        "eventID": "a1",
        "dynamodb": {
            "ApproximateCreationDateTime": 1772359200,
            "Keys": {name: {"S": text} for name, text in keys.items()},
            "NewImage": {**{name: {"S": text} for name, text in keys.items()}, **image},
        },
        "eventSourceARN": "arn:aws:dynamodb:eu-west-1:999988887777:table/shop/stream/2026-03-01T00:00:00.000",
    }


def replaced(*images, kept=None):
    """The images of records, replaced together."""
    records = [record(image, PK=f"ITEM#{number}") for number, image in enumerate(images)]
    pseudonyms = Pseudonyms(records, kept or KeptValues())
    return [pseudonyms.record(each)["dynamodb"]["NewImage"] for each in records]


def texts(*values, kept=None):
    return [image["x"]["S"] for image in replaced(*({"x": {"S": value}} for value in values), kept=kept)]


def numbers(*values):
    return [Decimal(image["x"]["N"]) for image in replaced(*({"x": {"N": str(value)}} for value in values))]


def of_file(path):
    """The records of a file, and their substitutes as ``streamfold new`` makes them."""
    sample, records = read_sample(str(path)), recorded(path)
    shapes = {}
    for table in sample.tables:
        shapes |= {key.name: key.shape for key in chart_of(table.items, table.table, path.name).keys}
    kept = kept_values(shapes)
    return records, kept


FILES = EVENTS + TENANTS


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("first", [FIRST, pytest.param(None, marks=pytest.mark.ci)], ids=["begin", "all"])
def test_a_replay_gives_as_many_rows_of_each_target(path, first, tmp_path):
    app = import_module("handlers.tenants" if path in TENANTS else "handlers").app
    records, kept = of_file(path)
    records = records[:first]
    pseudonyms = Pseudonyms(records, kept)
    rows = []
    for name, given_records in (("old", records), ("new", [pseudonyms.record(each) for each in records])):
        (tmp_path / name).mkdir()
        rows.append(rows_by_target(app, given_records, tmp_path / name))
    assert rows[0] == rows[1]


def test_one_value_has_the_same_substitute_in_keys_copies_and_nested_values():
    customer = {"S": "c-91834"}
    key, copy, composed, nested, binary = replaced(
        {"PK": {"S": "CUSTOMER#c-91834"}},
        {"customer": customer},
        {"GSI1SK": {"S": "2026-03-01#c-91834#ORDER"}},
        {"lines": {"L": [{"M": {"by": customer, "all": {"SS": ["c-91834"]}}}]}},
        {"raw": {"B": b64encode(b"c-91834").decode()}},
        kept=KeptValues(words={"customer", "order"}),
    )
    (_, _, new) = key["PK"]["S"].partition("#")
    assert new != "c-91834"
    assert key["PK"]["S"].startswith("CUSTOMER#")
    assert copy["customer"]["S"] == new
    assert composed["GSI1SK"]["S"].endswith(f"#{new}#ORDER")
    assert nested["lines"]["L"][0]["M"] == {"by": {"S": new}, "all": {"SS": [new]}}
    assert b64decode(binary["raw"]["B"]).decode() == new


def test_two_runs_have_two_secrets():
    values = [f"somebody{chr(97 + number)}" for number in range(9)]
    assert texts(*values) != texts(*values)


def test_words_keep_their_case_and_length():
    lower, upper, title = texts("lovelace", "LOVELACE", "Lovelace")
    assert re.fullmatch("[a-z]{8}", lower)
    assert lower != "lovelace"
    assert (upper, title) == (lower.upper(), lower.capitalize())


def test_what_stays_is_not_replaced_and_is_no_substitute():
    kept = KeptValues()
    kept.keep("in progress")
    new, other = texts("in progress", "anna in Bern", kept=kept)
    assert new == "in progress"
    assert other.split()[1] == "in"


@settings(max_examples=30, deadline=None)
@example([Decimal(-(10**9)), -209283736])
@example([10**9, 2_999_999_999, 3_000_000_000, 4_199_999_999, 4_200_000_000, 10**10, 10**12, 3 * 10**12])
@given(
    st.lists(
        st.decimals(-(10**9), 10**9, allow_nan=False, places=3) | st.integers(-(10**12), 10**12),
        min_size=1,
        max_size=60,
    )
)
def test_the_order_of_numbers_stays(values):
    values = [Decimal(value) for value in values]
    new = numbers(*values)
    for one, its in zip(values, new, strict=True):
        for other, others in zip(values, new, strict=True):
            assert (its < others) == (one < other), (one, its, other, others)
        assert (its < 0) == (one < 0)
        assert (its == int(its)) or one != int(one)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12), max_size=40, unique=True)
)
def test_different_texts_stay_different(values):
    assert len(set(texts(*values))) == len(values)


def test_numbers_in_keys_keep_their_digits_and_agree_with_numbers():
    key, number = replaced({"SK": {"S": "V#0047"}}, {"version": {"N": "47"}}, kept=KeptValues(words={"v"}))
    assert re.fullmatch(r"V#00\d\d", key["SK"]["S"])
    assert int(key["SK"]["S"][2:]) == int(number["version"]["N"])


def test_years_stay_years():
    assert all(1900 <= year < 2100 for year in numbers(1987, 2003, 2026))


def test_a_time_is_one_time_in_each_notation():
    text, seconds, milliseconds, key, day = replaced(
        {"x": {"S": "2026-03-01T10:00:00Z"}},
        {"x": {"N": "1772359200"}},
        {"x": {"S": "AT#1772359200000"}},
        {"x": {"S": "2026-03-01T10:00:00.000000+00:00#1"}},
        {"x": {"S": "2026-03-01"}},
        kept=KeptValues(words={"at"}),
    )
    moment = datetime.fromisoformat(text["x"]["S"])
    assert moment != datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert int(seconds["x"]["N"]) == moment.timestamp()
    assert milliseconds["x"]["S"] == f"AT#{int(moment.timestamp())}000"
    assert datetime.fromisoformat(key["x"]["S"].partition("#")[0]) == moment
    assert date.fromisoformat(day["x"]["S"]) == moment.date()
    assert moment.isoweekday() == 7


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dates(date(2025, 11, 1), date(2026, 5, 30)), min_size=1, max_size=40))
def test_days_weeks_and_months_stay_apart_and_in_order(days):
    new = [date.fromisoformat(text) for text in texts(*map(str, days))]
    for each in (lambda day: day, lambda day: day.isocalendar()[:2], lambda day: (day.year, day.month)):
        one_to_one = {(each(old), each(moved)) for old, moved in zip(days, new, strict=True)}
        assert len(one_to_one) == len({old for old, _ in one_to_one}) == len({moved for _, moved in one_to_one})
    assert sorted(range(len(days)), key=days.__getitem__) == sorted(range(len(days)), key=new.__getitem__)


def test_ulids_and_uuids_stay_valid_and_ordered():
    values = ["01KJSBHHS0FFFFFFFFFFFFFF22", "01KJSGR5T0FFFFFFFFFFFFFF23"]
    first, second = texts(*values)
    assert re.fullmatch(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", first)
    assert first < second
    first, second = texts("0195f3d2-7c00-7abc-8def-0123456789ab", "0195f3d3-7c00-7abc-8def-0123456789ab")
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", first)
    assert first < second


def test_binary_values_stay_of_their_length_and_different():
    values = [bytes([255, number]) for number in range(30)]
    new = [
        b64decode(image["x"]["B"]) for image in replaced(*({"x": {"B": b64encode(each).decode()}} for each in values))
    ]
    assert {len(each) for each in new} == {2}
    assert len(set(new)) == 30
    assert new != values


def test_a_text_of_json_keeps_its_names_and_is_json():
    given = {"by": "c-91834", "tags": ["alpha\nbeta", True, None, -2.75], "at": "2026-03-01", "n": 41, "e": 1e30}
    text, alone = texts(json.dumps(given), "c-91834")
    found = json.loads(text)
    assert found.keys() == given.keys()
    assert found["by"] == alone
    assert found["tags"][1:3] == [True, None]
    assert "\n" in found["tags"][0]
    assert found["e"] == 1e30
    assert not {"alpha", "beta", "2026-03-01"} & set(re.findall(r"[\w-]+", text))


def test_names_of_attributes_stay_and_identifiers_as_names_do_not():
    kept = KeptValues(identifiers={"ada"})
    votes, address = replaced(
        {"x": {"M": {"ada": {"N": "1"}, "2026-03-01": {"N": "2"}}}}, {"x": {"M": {"line1": {"S": "Elm"}}}}, kept=kept
    )
    assert not {"ada", "2026-03-01"} & votes["x"]["M"].keys()
    assert address["x"]["M"].keys() == {"line1"}


def test_the_envelope_names_no_account_and_keeps_expiries():
    raw = record({}, PK="ITEM#1") | {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
    made = Pseudonyms([raw], KeptValues()).record(raw)
    assert "999988887777" not in json.dumps(made)
    assert made["userIdentity"]["principalId"] == "dynamodb.amazonaws.com"
    other = record({}, PK="ITEM#1") | {"userIdentity": {"type": "User", "principalId": "ada"}}
    assert "userIdentity" not in Pseudonyms([other], KeptValues()).record(other)


def test_books_that_balance_still_do():
    records, kept = of_file(ROOT / "events" / "bank.jsonl")
    assert kept.balanced
    pseudonyms = Pseudonyms(records, kept)
    amounts = [Decimal(pseudonyms.number(text)) for text in ("-271.24", "271.24")]
    assert sum(amounts) == 0
    assert abs(amounts[0]) != Decimal("271.24")


def test_values_of_few_kinds_in_a_key_stay_if_the_items_have_them_as_an_attribute():
    items = [
        SampledItem((f"STATUS#{status}", f"{name}#n{number}x"), {"status": {"S": status}, "owner": {"S": name}})
        for number in range(6)
        for status in ("OPEN", "DONE")
        for name in ("ada", "bob")
    ]
    shapes = {key.name: key.shape for key in chart_of(items, MAIN, "x").keys}
    kept = kept_values(shapes)
    assert list(kept.values.values()) == [["DONE", "OPEN"]]
    assert {"ada", "bob"} <= kept.identifiers


def test_values_of_few_kinds_stay_and_those_that_identify_do_not():
    _, kept = of_file(ROOT / "events" / "tenants" / "tasks.jsonl")
    assert kept.values == {"PROJECT_TASK.state": ["doing", "done", "todo"]}
    _, kept = of_file(ROOT / "events" / "shop.jsonl")
    assert kept.values["ORDER.status"] == ["cancelled", "paid", "placed", "shipped"]
    assert not any(path.endswith(("email", "name", "street")) for path in kept.values)

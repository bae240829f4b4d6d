"""Key charts that are proposed from records, compared with those that were declared or drawn."""

import re
from collections import Counter
from functools import cache
from importlib import import_module

import pytest

from streamfold import Key, Table
from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN
from streamfold.starter.attributes import types_of
from streamfold.starter.chart import chart_of
from streamfold.starter.samples import read_sample
from streamfold.starter.shapes import SampledItem
from tests.helpers.commands import EVENTS, ROOT
from tests.helpers.drawn_charts import drawn_table

TENANTS = sorted((ROOT / "events" / "tenants").glob("*.jsonl"))
SEEDS = range(8)


def without_names(template):
    """A template in which kinds of fields count, not their names."""
    return re.sub(r"\{\w+", "{", template)


@cache
def chart_of_file(path):
    (table,) = read_sample(str(path)).tables
    return chart_of(table.items, table.table, path.name, table.notes)


def items_of(*keys, **attributes):
    """Items with these keys, as texts with a space between partition and sort key."""
    image = {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in attributes.items()}
    return [SampledItem(tuple(key.split(" ")) if isinstance(key, str) else key, image) for key in keys]


def chart(items, table=MAIN):
    return chart_of(items, table, "the file")


def templates(items, table=MAIN):
    return {without_names(key.key.template) for key in chart(items, table).keys}


@pytest.mark.parametrize("path", EVENTS + TENANTS, ids=lambda path: path.stem)
def test_the_shapes_of_a_shipped_recording_are_those_that_its_handlers_declare(path):
    modules = map(import_module, modules_of(path))
    declared = {value for module in modules for value in vars(module).values() if isinstance(value, Key)}
    (table,) = read_sample(str(path)).tables
    met = {key for key in declared for item in table.items if key.match_values(*item.key) is not None}
    assert templates(table.items) == {without_names(key.template) for key in met}


def modules_of(path):
    """The modules whose handlers are of a recording's application."""
    files = (ROOT / "handlers").glob("[a-z]*.py")
    return ["handlers.tenants"] if path in TENANTS else [f"handlers.{file.stem}" for file in files]


@pytest.mark.parametrize("path", TENANTS, ids=lambda path: path.stem)
def test_tenants_are_named_as_such(path):
    found = chart_of_file(path)
    assert found.tenant == "tenant"
    assert all(key.key.template.startswith("{tenant}#") for key in found.keys)


def items_of_records(records, table):
    found = []
    for record in records:
        body = record["dynamodb"]
        keys = {name: next(iter(value.items())) for name, value in body["Keys"].items()}
        key = tuple(int(keys[name][1]) if keys[name][0] == "N" else keys[name][1] for name in table.attributes)
        found.append(SampledItem(key, {name: value for name, value in body["NewImage"].items() if name not in keys}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(range(8, 120), marks=pytest.mark.ci)], ids=["few", "many"])
def test_drawn_charts_are_found_and_what_is_wrong_is_marked(seeds):
    right = wrong = types_right = types = 0
    unmarked = []
    for seed in seeds:
        drawn = drawn_table(seed)
        found = chart_of(
            items_of_records(drawn.records, drawn.table), Table("main", drawn.table.partition, drawn.table.sort), "x"
        )
        by_template = {without_names(key.key.template): key for key in found.keys}
        for shape in drawn.shapes:
            key = by_template.get(drawn.template(shape))
            if key is None:
                wrong += 1
                continue
            right += 1
            of = types_of(key.name, key.name, [item.image for item in key.shape.items], set())[-1]
            proposed = {each.name: each.type for each in of.attributes}
            types += len(proposed)
            types_right += sum(proposed[name] == shape.attributes[name].type for name in proposed)
        truth = Counter(drawn.templates())
        unmarked += [
            (seed, template) for template, key in by_template.items() if template not in truth and not key.notes
        ]
    assert unmarked == []
    assert right / (right + wrong) >= 0.9, (right, wrong)
    assert types_right / types >= 0.95, (types_right, types)


def test_a_field_of_few_words_is_no_literal():
    keys = [f"GAME#{game} SCORE#{player}" for game in ("chess", "go") for player in ("p1", "p2", "p3")]
    assert templates(items_of(*keys, points=3)) == {"GAME#{} / SCORE#{}"}


def test_a_field_of_few_words_in_the_case_of_the_literals_is_merged_with_a_note():
    keys = [f"game#{game} score#{player}" for game in ("chess", "go") for player in ("p1", "p2", "p3")]
    (found,) = chart(items_of(*keys, points=3)).keys
    assert without_names(found.key.template) == "game#{} / score#{}"
    assert found.notes == ["2 words in one segment: each may be a literal"]


def test_an_attribute_with_the_same_value_names_a_field_of_few_words():
    items = [
        item
        for status in ("OPEN", "DONE")
        for item in items_of(*(f"STATUS#{status} T#{number}x" for number in range(5)), status=status)
    ]
    (found,) = chart(items).keys
    assert (found.key.template, found.notes) == ("STATUS#{status} / T#{t_id}", [])


def test_an_attribute_that_names_the_type_is_no_value_of_a_field():
    items = [
        item
        for kind in ("TEAM", "GROUP")
        for item in items_of(*(f"{kind}#{number}x META" for number in range(5)), type=kind)
    ]
    assert templates(items) == {"TEAM#{} / META", "GROUP#{} / META"}


def test_capital_words_are_shapes_of_their_own_with_a_note():
    items = items_of(*(f"USER#u{number} {word}" for number in range(5) for word in ("PROFILE", "SETTINGS")), data="x")
    found = chart(items).keys
    assert {key.key.template for key in found} == {"USER#{user_id} / PROFILE", "USER#{user_id} / SETTINGS"}
    assert {note for key in found for note in key.notes} == {
        "another shape differs in one word, and has the same attributes"
    }


def test_one_value_of_a_segment_is_a_literal_with_a_note():
    (found,) = chart(items_of(*(f"SHOP#MAIN ORDER#o-{number}" for number in range(5)), total=3)).keys
    assert (without_names(found.key.template), found.notes) == ("SHOP#MAIN / ORDER#{}", ["MAIN may be a value"])


def test_a_shape_of_one_item_has_a_note():
    (found,) = chart(items_of("ORDER#1 META", total=3)).keys
    assert "1 item only" in found.notes


def test_equal_fields_of_both_components_have_one_name():
    (found,) = chart(items_of(*(f"USER#u-{number} USER#u-{number}" for number in range(9)), name="x")).keys
    assert found.key.template == "USER#{user_id} / USER#{user_id}"


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        ([f"2026-03-{day:02d}" for day in range(1, 9)], ":date"),
        ([f"2026-03-01T10:00:0{second}Z" for second in range(9)], ":datetime.seconds"),
        ([f"2026-03-01T10:00:0{second}.123Z" for second in range(9)], ":datetime.milliseconds"),
        ([f"2026-03-01T10:00:0{second}+00:00" for second in range(9)], ":datetime.seconds.offset"),
        (["2026-03-01T10:00:00Z", "2026-03-01T10:00:00.5Z", "2026-03-01T10:00:01+00:00"], ":datetime.any"),
        (["2026-03-01T10:00:00+01:00", "2026-03-01T11:00:00+01:00"], ""),
        ([f"01ARZ3NDEKTSV4RRFFQ69G5FA{letter}" for letter in "ABCDE"], ":ulid"),
        ([f"{number:04d}" for number in range(9)], ":04d"),
        (["1", "2", "10", "11"], ":d"),
        ([str(1772359200 + number) for number in range(9)], ":epoch.seconds"),
        ([str(1772359200000 + number) for number in range(9)], ":epoch.milliseconds"),
        (["2024", "2025", "2026"], ":04d"),
        (["1", "02", "113"], ""),
        ([f"{number:019d}" for number in range(9)], ""),
        (["x-1", "x-2"], ""),
    ],
)
def test_fields_have_the_kind_of_their_values(values, spec):
    assert templates(items_of(*(f"DEVICE#d1x AT#{value}" for value in values))) == {f"DEVICE#{{}} / AT#{{{spec}}}"}


def test_digits_of_a_partition_key_are_text_with_a_note():
    (found,) = chart(items_of(*(f"ORDER#{number:06d} META" for number in range(9)))).keys
    assert (found.key.template, found.notes) == ("ORDER#{order_id} / META", ["digits: {x:06d} reads numbers"])


def test_a_version_behind_a_letter_is_a_number():
    (found,) = chart(items_of(*(f"DOC#d-{number % 3} v{number}" for number in range(1, 12)))).keys
    assert without_names(found.key.template) == "DOC#{} / v{:d}"


def test_keys_of_several_lengths_with_the_same_attributes_are_a_path():
    keys = [f"SHOP#s-{number} AISLE#{path}" for number in range(4) for path in ("a1", "a1#b2", "a1#b2#c3")]
    (found,) = chart(items_of(*keys, stock=3)).keys
    assert without_names(found.key.template) == "SHOP#{} / AISLE#{:rest}"
    assert found.notes


@pytest.mark.parametrize("delimiter", ["|", "/", ":", "_", "-"])
def test_another_delimiter_is_found(delimiter):
    keys = [f"ORDER{delimiter}x{number} AT{delimiter}2026-03-01T10:00:0{number}Z" for number in range(9)]
    found = chart(items_of(*keys, total=3))
    assert found.table.delimiter == delimiter
    assert found.keys[0].key.template == f"ORDER{delimiter}{{order_id}} / AT{delimiter}{{at:datetime.seconds}}"


def test_keys_of_numbers_and_bytes_are_whole_fields():
    table = Table("main", "device", "at")
    items = items_of(*((f"d-{number}", 1772359200 + number) for number in range(9)))
    assert chart(items, table).keys[0].key.template == "{device} / {at:number.seconds}"
    items = items_of(*((bytes([number]), 17 + number) for number in range(9)))
    assert chart(items, Table("main", "hash", "size")).keys[0].key.template == "{name:binary} / {size:number}"


def test_keys_without_literals_are_named_by_their_attributes():
    table = Table("main", "user_id", None)
    assert chart(items_of(*((f"u-{number}",) for number in range(9))), table).keys[0].key.template == "{user_id}"


def word(number):
    """Words without digits, all different: a, b, ..., ba, bb, ..."""
    return (word(number // 26) if number >= 26 else "") + chr(65 + number % 26)


@pytest.mark.parametrize(
    "item_of",
    [
        lambda n: items_of(f"KIND{word(n)}#{n} META", total=n),
        lambda n: items_of(f"TYPE{n}#{n} META", total=n),
        lambda n: items_of(f"kind{word(n)}#{n} META", **{f"a{n}": n}),
    ],
    ids=["words", "numbered", "attributes"],
)
def test_thousands_of_shapes_are_refused(item_of):
    items = [item for number in range(2_000) for item in item_of(number)]
    with pytest.raises(SettingsError, match=r"the file has over 200 shapes of keys, such as .*: expected keys that"):
        chart(items)


def test_words_before_fields_with_the_same_attributes_are_no_tenants():
    keys = [f"site#{site} info" for site in ("porto", "lyon")]
    keys += [f"sensor#{site}#s{number}x config" for site in ("porto", "lyon") for number in range(4)]
    items = items_of(*keys[:2], city="x") + items_of(*keys[2:], interval=3)
    assert templates(items) == {"site#{} / info", "sensor#{}#{} / config"}


def test_tenants_in_the_case_of_the_literals_are_found_with_a_note():
    words = ("north", "south", "east")
    items = items_of(*(f"{word}#project#p{n}x meta" for word in words for n in range(4)), title="x")
    items += items_of(*(f"{word}#member#m{n}x meta" for word in words for n in range(4)), name="x")
    found = chart(items)
    assert found.tenant == "tenant"
    assert {key.key.template for key in found.keys} == {
        "{tenant}#project#{project_id} / meta", "{tenant}#member#{member_id} / meta"
    }  # fmt: skip
    assert all("the first segment has 3 words, and may be a literal" in key.notes for key in found.keys)


def test_a_literal_may_have_digits():
    keys = [f"COURSE#{number:08x}c I18N#{language}" for number in range(9) for language in ("de", "en")]
    assert templates(items_of(*keys, title="x")) == {"COURSE#{} / I18N#{}"}


def test_fields_that_follow_from_each_other_are_found_with_notes():
    cities = {"US": ("NY", "LA"), "DE": ("BER", "HAM"), "FR": ("PAR", "LYO")}
    keys = [f"COUNTRY#{one} {city}#s{n}x" for one, several in cities.items() for city in several for n in range(4)]
    (found,) = chart(items_of(*keys, open="x")).keys
    assert without_names(found.key.template) == "COUNTRY#{} / {}#{}"
    assert len(found.notes) == 2


def test_digits_that_a_number_of_the_items_equals_are_a_number():
    items = [item for number in range(1, 9) for item in items_of(f"PR#{number:04d} PR#{number:04d}", number=number)]
    (found,) = chart(items).keys
    assert found.key.template == "PR#{pr_id:04d} / PR#{pr_id:04d}"


def test_a_field_of_one_value_has_a_note():
    (found,) = chart(items_of(*(f"APP#github GIST#g{number}x" for number in range(9)))).keys
    assert found.notes == ["one value of segment 2, which may be a literal"]


def test_keys_that_begin_with_the_delimiter_are_divided_too():
    assert templates(items_of(*(f"USER#u{n}x #METADATA#u{n}x" for n in range(9)))) == {"USER#{} / #METADATA#{}"}

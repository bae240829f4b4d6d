"""Values and documents that OpenSearch takes and refuses, by mapping: the local index and the servers must agree."""

from typing import Any, NamedTuple


class Case(NamedTuple):
    """Documents, as texts of JSON, that an index with this mapping takes, and that it refuses."""

    name: str
    mapping: dict[str, Any]
    taken: list[str]
    refused: list[str]
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed


def of_type(type_, taken, refused, settings=None, **options):
    """A case of one field, whose values are given as JSON."""
    name = " ".join([type_, *map(str, options.values()), *(settings or {})])
    values = ([f'{{"f":{value}}}' for value in some] for some in (taken, refused))
    return Case(name, properties(f={"type": type_, **options}), *values, settings=settings or {})


def properties(**fields):
    return {"dynamic": False, "properties": fields}


def arrays(depth, inner="1"):
    return "[" * depth + inner + "]" * depth


LONG = "9223372036854775807"
TOO_LONG = "k" * 32_767
OBJECT = {"type": "object", "properties": {"k": {"type": "long"}}}
BASE = ["null", "[]", '"2"', '[1,"2",null,[3]]', "1e2", '""']
NUMBERS = [*BASE, '"+5"', '"1."', '".5"', '"1e2"']
NO_NUMBERS = ["true", "{}", '{"a":1}', '[{"a":1}]', '"abc"', '"0x10"', '"1_0"', '"."', '" "']
WIDE = ["1e400", "1" * 400]
DATES = [
    "2026-03-01",
    "2026-03-01T10:00:00Z",
    "2026-03-01T10:00:00.123456Z",
    "2026-03-01T10:00",
    "2026-03-01T10:00:00+01:00",
    "2026-03",
    "2026",
    "20260301",
    "1772359200000",
    "2026-03-01T10:00:00Europe/Berlin",
]
NO_DATES = [
    "2026-02-30",
    "2026-13-01",
    "2026-3-1",
    "2026-03-01 10:00:00",
    "2026-03-01T25:00:00Z",
    "2026-03-01T10:60:00Z",
    "2026-03-01T10:00:00.1234567890Z",
    "2026-03-01T10:00:00z",
    "2026-03-01T10:00:00+19:00",
    "2026-03-01Z",
    "yesterday",
    "now",
    "",
    "1e3",
]


def texts(values):
    return [f'"{value}"' for value in values]


CASES = [
    of_type(
        "long",
        [*NUMBERS, LONG, f"-{LONG}", "-9223372036854775808", "1.5", '"1.5"', f"{LONG}.5", f'"{LONG}"'],
        [*NO_NUMBERS, *WIDE, "9223372036854775808", "-9223372036854775809", '" 1"', '"NaN"', "1e19"],
    ),
    of_type("unsigned_long", [*NUMBERS, "18446744073709551615", "-0.5"], [*NO_NUMBERS, *WIDE, "-1", '"-5"', "1e20"]),
    of_type(
        "integer",
        [*NUMBERS, "2147483647", "-2147483648", "1.5", '" 1 "'],
        [*NO_NUMBERS, *WIDE, "2147483648", "2147483647.5", "-2147483648.5", '"2147483647.5"', '"Infinity"'],
    ),
    of_type("short", [*NUMBERS, "32767.5", "-32768.5"], [*NO_NUMBERS, *WIDE, "32768", "-32769", '"32767.5"', "1e18"]),
    of_type("byte", [*NUMBERS, "127.5", "-128.5", '"127.5"'], [*NO_NUMBERS, *WIDE, "128", "-129", '"128"', "1e3"]),
    of_type("double", [*NUMBERS, "1e308", "1e-400", "1" * 40, '"1d"', '"0x1p3"'], [*NO_NUMBERS, *WIDE, '"NaN"']),
    of_type("float", [*NUMBERS, "3.4028235e38", '"1f"'], [*NO_NUMBERS, *WIDE, "3.4028236e38", "1e308", '"Infinity"']),
    of_type("half_float", [*NUMBERS, "65504", "65519"], [*NO_NUMBERS, *WIDE, "65520", "70000"]),
    of_type("scaled_float", NUMBERS, [*NO_NUMBERS, *WIDE], scaling_factor=100),
    of_type("long", ["1", "1e2", "null"], ['"1"', '""', "1.5", "true"], coerce=False),
    of_type("double", ["1", "1.5"], ['"1"', '"abc"'], coerce=False),
    of_type("long", ["1"], ['"1"', "1.5"], {"index.mapping.coerce": False}),
    of_type("long", ['"abc"', "true", "1e400", "1"], [], ignore_malformed=True),
    of_type("date", ['"yesterday"', "true", "1e3"], [], ignore_malformed=True),
    of_type("long", ['"abc"', '{"a":1}'], [], {"index.mapping.ignore_malformed": True}),
    of_type("boolean", ['"x"', "1"], [], {"index.mapping.ignore_malformed": True}),
    of_type("object", ['{"a":1}'], ["1"], {"index.mapping.ignore_malformed": True}),
    of_type(
        "boolean",
        ["true", "false", '"true"', '"false"', '""', "null", "[true]"],
        ["1", "0", "1.0", '"True"', '"yes"', '" "', "{}"],
    ),
    of_type(
        "keyword",
        ['"x"', "1", "1.5", "true", "null", '["a",[1]]', '""', f'"{TOO_LONG[1:]}"', f'"{"é" * 16_383}"', '"a\\u0000b"'],
        ["{}", '{"a":1}', "[{}]", f'"{TOO_LONG}"', f'"{"é" * 16_384}"'],
    ),
    of_type("keyword", [f'"{TOO_LONG}"'], ["{}"], ignore_above=100),
    of_type("keyword", [f'"{TOO_LONG}"'], ["{}"], index=False, doc_values=False),
    of_type("keyword", ['"x"'], [f'"{TOO_LONG}"'], index=False),
    of_type("text", ['"x"', "1", "true", f'"{TOO_LONG}"'], ["{}", '{"a":1}', "[{}]"]),
    of_type("text", ['"x"'], [f'"{TOO_LONG}"'], analyzer="keyword"),
    of_type("text", ['"x"'], [f'"{TOO_LONG}"'], fields={"raw": {"type": "keyword"}}),
    of_type("keyword", ['"1"', "1"], ['"x"', "true"], fields={"number": {"type": "long"}}),
    of_type("wildcard", ['"x"', "1"], ["{}"]),
    of_type("constant_keyword", ['"x"', "[]"], ['"y"', "null"], value="x"),
    of_type("date", [*texts(DATES), *BASE[:2], "1772359200000", "-1", "1.5"], [*texts(NO_DATES), "true", "1e3", "{}"]),
    of_type("date_nanos", ['"2026-03-01"', "1772359200000"], ['"1969-12-31"', '"2263-01-01"', '"yesterday"', "-1"]),
    of_type("date", ['"20260301"', "1", '"1.5"'], ['"2026-03-01"', '"x"', "true", "1e3"], format="epoch_second"),
    of_type("date", ['"2026-03-01"'], ['"2026-02-30"', '"2026"', '"x"', "1772359200000"], format="yyyy-MM-dd"),
    of_type("date", ['"2026-03-01 10:00:00"'], ['"2026-03-01"', '"2026-03-01 25:00:00"'], format="yyyy-MM-dd HH:mm:ss"),
    of_type("date", ['"2026-03-01"', "1"], ['"2026-3-1"', '"x"'], format="yyyy-MM-dd||epoch_millis"),
    of_type("date", ['"2026-03-01"'], ['"20260301"', "1"], format="strict_date_optional_time"),
    of_type("date", ['"20260301"'], ['"2026-03-01"'], format="basic_date"),
    of_type("date", ['"2026-W10-1"'], ["true", "{}"], format="strict_weekyear_week_day"),
    of_type(
        "ip",
        ['"1.2.3.4"', '"::1"', '"::ffff:1.2.3.4"', '["::","::1"]', "null"],
        ['"300.1.1.1"', '""', "1", "true", '"1.2.3.4/24"', '"01.2.3.4"', '"1.2.3"', '"1.2.3.4 "', "{}"],
    ),
    of_type("binary", ['"YWJj"', '"!!"', '""', "1", "null"], ["{}"]),
    of_type("binary", ['"YWJj"', '""'], ['"YWJ"', '"!!"', "1", "true"], doc_values=True),
    of_type("flat_object", ["{}", '{"a":1}', "null", "[{}]"], ['"x"', "1", "true", '["a"]']),
    of_type("completion", ['"x"', "null", '{"input":["x"],"weight":2}'], ["1", "true", '{"a":1}']),
    of_type("object", ["{}", '{"a":1}', "null", "[{},null]", "[[{}]]", "[]"], ["1", '"x"', "true", "[1]", "[[1]]"]),
    of_type("nested", ["{}", '{"a":1}', "null", "[{},null]"], ["1", '"x"', "[1]"]),
    of_type(
        "geo_point",
        ['{"lat":1,"lon":2}', '"1,2"', "[1,2]", "[[1,2],[3,4]]", '"drm3btev3e86"', '"POINT (1 2)"', "null"],
        ['{"lat":91,"lon":2}', '{"lat":1,"lon":181}', '"91,2"', "[1]", '{"lat":1}', '{"lat":"x","lon":2}', "1", '""'],
    ),
    of_type(
        "integer_range",
        ['{"gte":1,"lte":2}', '{"gt":1,"lt":3}', "{}", '[{"gte":1}]', "null", '{"gte":null}'],
        ['{"gte":2,"lte":1}', '{"gt":1,"lte":1}', '{"gt":1,"lt":2}', '{"gte":"a"}', '{"x":1}', "1", '"1"'],
    ),
    of_type("integer_range", ['{"gte":1.9,"lte":1.1}', '{"gte":1,"lte":1}'], ['{"gte":1,"lt":1.9}']),
    of_type("double_range", ['{"gte":1.5,"lte":1.5}', '{"gt":1,"lt":2}'], ['{"gt":1.5,"lte":1.5}', '{"gte":2,"lt":1}']),
    of_type(
        "date_range",
        [
            '{"gte":"2026-03-01"}',
            '{"gte":1}',
            '{"gte":"2026-03-01","lte":"2026-03-01"}',
            '{"gt":"2026-03-01T10:00:00Z","lt":"2026-03-01T11:00:00Z"}',
        ],
        [
            '{"gte":"x"}',
            '"2026"',
            '{"gte":"2026-03-02","lte":"2026-03-01"}',
            '{"gt":"2026-03-01","lt":"2026-03-01"}',
            '{"gte":"2026-03-01T10:00:00Z","lt":"2026-03-01T10:00:00Z"}',
            '{"gte":2,"lte":1}',
        ],
    ),
    of_type("ip_range", ['{"gte":"1.2.3.4"}', '"1.2.3.0/24"'], ['"1.2.3.4"', '{"gte":"x"}', '"x"']),
    Case(
        "names",
        properties(n={"type": "long"}, o=OBJECT),
        [
            '{"o":{"_id":1}}',
            '{"_foo":1}',
            '{"_doc_count":1}',
            '{"a.b":1,"a":{"c":2}}',
            '{"a":1,"a.b":2}',
            '{"a.":1}',
            '{" ":1}',
            '{"m":{".":1,"a..b":1}}',
            '{"o.x":1,"o.k":1}',
            '{"o":{"k":1},"o.k":2}',
            '{"o":{"x":{"a..b":1}}}',
        ],
        [
            *(f'{{"{name}":"x"}}' for name in ("_id", "_index", "_source", "_routing", "_version", "_seq_no")),
            *(f'{{"{name}":1}}' for name in ("_field_names", "_ignored", "_nested_path", "_data_stream_timestamp")),
            '{"_id.x":1}',
            '{"_doc_count":"x"}',
            '{".":1}',
            '{"...":1}',
            '{".a":1}',
            '{"a..b":1}',
            '{"a. .b":1}',
            '{"n.x":1}',
            '{"o.k.x":1}',
            '{"o.k":"x"}',
            '{"o":{"k":"x"}}',
            '{"o":{"":1}}',
            '{"o":{"a..b":1}}',
            '{"o":{"k.z":1}}',
            '{"o.":1}',
        ],
    ),
    Case("nested by a path", properties(o={"type": "nested"}), ['{"o":{"x":1}}'], ['{"o.x":1}']),
    Case(
        "objects that are not looked into",
        properties(o={"type": "object", "enabled": False}),
        ['{"o":1}', '{"o.k":"x"}', '{"o":{"a..b":1}}', '{"o":[1]}'],
        ['{"_id":1}'],
    ),
    Case(
        "nothing is looked into", {"enabled": False, "properties": {"n": {"type": "long"}}}, ['{"n":"x","_id":1}'], []
    ),
    Case(
        "strict",
        {"dynamic": "strict", "properties": {"o": OBJECT, "n": {"type": "long"}}},
        ['{"n":1}', '{"o":{"k":1}}', '{"o":{"z":null}}'],
        ['{"a":1}', '{"a":null}', '{"o":{"x":1}}', '{"o.x":1}', '{"a":{}}'],
    ),
    Case(
        "strict in an object",
        properties(o={**OBJECT, "dynamic": "strict"}),
        ['{"a":1}', '{"o":{"k":1}}'],
        ['{"o":{"x":1}}', '{"o.x":1}', '{"o":{"z":null}}'],
    ),
    Case(
        "dynamic",
        {"dynamic": True, "properties": {"o": OBJECT}},
        ['{"a":1}', '{"o":{"x":1}}', '{"z":{"y":1}}'],
        ['{"z":{"a..b":1}}', '{"o":{" ":1}}', '{"o":{"k":"x"}}'],
    ),
    Case(
        "copies",
        properties(f={"type": "keyword", "copy_to": "n"}, n={"type": "long"}),
        ['{"f":"1"}'],
        ['{"f":"x"}'],
    ),
    Case(
        "an alias",
        properties(f={"type": "keyword"}, g={"type": "alias", "path": "f"}),
        ['{"f":"x"}'],
        ['{"g":"x"}', '{"g":null}'],
    ),
    Case(
        "a declared name with a dot",
        properties(**{"a.b": {"type": "long"}}),
        ['{"a":{"b":1}}', '{"a.b":1}'],
        ['{"a":{"b":"x"}}', '{"a.b":"x"}', '{"a":1}'],
    ),
    Case(
        "arrays in arrays",
        properties(n={"type": "long"}, o={"type": "object"}),
        [f'{{"n":{arrays(20)}}}', f'{{"d":{arrays(20)}}}', f'{{"d":{{"e":{arrays(25)}}}}}'],
        [f'{{"n":{arrays(21)}}}', f'{{"d":{arrays(21)}}}', f'{{"o":{{"e":{arrays(21)}}}}}'],
    ),
    Case(
        "fewer arrays in arrays",
        properties(n={"type": "long"}),
        [f'{{"n":{arrays(5)}}}'],
        [f'{{"n":{arrays(6)}}}'],
        {"index.mapping.depth.limit": 5},
    ),
    Case(
        "nested objects",
        properties(o={"type": "nested"}),
        ['{"o":[{"a":1},{"a":1}]}'],
        ['{"o":[{"a":1},{"a":1},{"a":1}]}'],
        {"index.mapping.nested_objects.limit": 2},
    ),
    Case("digits", properties(f={"type": "keyword"}), [f'{{"z":{"1" * 1000}}}'], [f'{{"z":{"1" * 1001}}}']),
]

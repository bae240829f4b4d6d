"""The shapes of a table's keys: which keys are of one template, which segments are literals, and which are fields.

Nothing in a table shows what a segment is, so it is inferred from all keys. A word that recurs is a
literal (``ORDER``), whatever has digits, or many values, is a field. A field of few words looks like literals: its
shapes (``GAME#chess``, ``GAME#go``) are merged if their items have the same attributes. What is decided by a habit of
writers, and not by the keys, becomes a note of the shape.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import dropwhile
from typing import NamedTuple

from streamfold.errors import SettingsError, shown
from streamfold.keys.field import make_field
from streamfold.keys.key_part import KeyValue
from streamfold.records.values import RawImage

SHAPES_MAX = 200
"""Shapes of one table: more than any single-table design has, and as many as a person can read."""
LEAVES_MAX = 5_000
"""Combinations of literals that are compared, before the combinations of one shape are merged."""
ATTRIBUTES_MAX = 1_000
"""Attributes of one shape."""
WORDS_MAX = 24
"""Words that one segment may have as literals. A segment with more words is a field."""
DELIMITERS = "#|/:~$;,_.-+="
"""Separators of key segments, those that no value has first."""
DOUBTFUL_DELIMITERS = ",_.-+="
"""Separators that are often inside of values: with one of them each shape has a note."""
HEAD_LETTERS_MIN = 3
"""Letters of a word before a delimiter: d-17 is an identifier."""
DEFAULT_DELIMITER = "#"
SURE_VALUES = 5
"""Values of a field of few words: with fewer, the shape has a note."""
SURE_ITEMS = 3
"""Items of a shape: with fewer, the shape has a note, because its fields may be literals."""
EQUAL_SHARE = 0.95
"""Share of items in which an attribute equals a segment of the key, for the segment to be that attribute."""
COMMON_SHARE = 0.8
"""Share of items with an attribute, for the attribute to be typical of a shape."""
ALIKE_SHARE = 0.5
"""Attributes in common, of all attributes of two shapes, for the shapes to be one."""
WORD = re.compile(r"[A-Za-z][A-Za-z_-]*")
WORD_WITH_DIGITS = re.compile(r"(?=(?:.*[A-Za-z]){2})(?!(?:.*\d){3})[A-Za-z][A-Za-z0-9_-]*")
"""A first segment of several may be ``I18N`` or ``OAUTH2``: two letters or more, and two digits at most."""
CAPITALS = re.compile(r"[A-Z_-]{3,}\d*")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
ULID = make_field("x", "ulid", DEFAULT_DELIMITER)
TYPE_NAMES = re.compile(
    r"_*(et|(entity|item|object|record|row|model|doc|document)?_?(type|kind|class|entity|model|typename))_*",
    re.IGNORECASE,
)
"""Attributes that name what an item is: they equal a literal of its key, not a field."""
TENANTS = ("tenant", "org", "organization", "organisation", "workspace", "company")
TENANT = "tenant"
LOWER, UPPER, CAPITAL = "lower", "upper", "capital"
LITERAL, TEXT, NUMBER, BINARY, REST = "literal", "text", "number", "binary", "rest"
KINDS: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("time", TIME.fullmatch),
    ("date", DATE.fullmatch),
    ("ulid", lambda text: ULID is not None and ULID.reads(text)),
)
"""Texts that no other field of the same segment has: shapes with them are apart."""


class SampledItem(NamedTuple):
    """The key of an item, and its attributes."""

    key: tuple[KeyValue, ...]  # partition, and sort if the table has one
    image: RawImage  # without the attributes of the key


class Column(NamedTuple):
    """One segment of a shape's key."""

    component: int  # 0 is the partition key, 1 the sort key
    kind: str
    text: str = ""  # of a literal

    @property
    def is_literal(self) -> bool:
        return self.kind == LITERAL


Columns = tuple[Column, ...]


@dataclass
class KeyShape:
    """The items whose keys are of one template."""

    columns: Columns
    items: list[SampledItem]
    segments: list[tuple[KeyValue, ...]]  # of each item, one for each column
    notes: list[str] = field(default_factory=list)

    @cached_property
    def names(self) -> Mapping[str, int]:
        """How many items have each attribute."""
        return Counter(name for item in self.items for name in item.image)

    @cached_property
    def types(self) -> Mapping[str, frozenset[str]]:
        """The types of each attribute; null is of every type."""
        found: dict[str, set[str]] = defaultdict(set)
        for item in self.items:
            for name, value in item.image.items():
                found[name].update(tag for tag in value if tag != "NULL")
        return {name: frozenset(tags) for name, tags in found.items()}

    def values(self, column: int) -> list[KeyValue]:
        """The distinct values of a segment, in their order."""
        return list(dict.fromkeys(segments[column] for segments in self.segments))

    @cached_property
    def keys(self) -> int:
        """The number of distinct items."""
        return len({item.key for item in self.items})

    def equal_attributes(self, column: int) -> set[str]:
        """The attributes that equal a segment in nearly all items, without those that name what an item is."""
        found: Counter[str] = Counter()
        for item, segments in zip(self.items, self.segments, strict=True):
            value = segments[column]
            found.update(name for name, each in item.image.items() if value in (each.get("S"), each.get("N")))
        enough = EQUAL_SHARE * len(self.items)
        return {name for name, count in found.items() if count >= enough and not TYPE_NAMES.fullmatch(name)}

    def is_numbered(self, column: int) -> bool:
        """Whether a number of the items equals the digits of a segment."""
        found: Counter[str] = Counter()
        for item, segments in zip(self.items, self.segments, strict=True):
            digits = str(segments[column]).lstrip("0") or "0"
            found.update(name for name, each in item.image.items() if each.get("N") == digits)
        return any(count >= EQUAL_SHARE * len(self.items) for count in found.values())

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def is_like(self, other: "KeyShape") -> bool:
        """Whether the items of two shapes have the same attributes."""
        few = min(self.keys, other.keys) < SURE_VALUES  # of few items an attribute may lack that most others have
        share = EQUAL_SHARE if few else COMMON_SHARE
        mine, theirs = self.names, other.names
        common = {name for name, count in mine.items() if count >= share * len(self.items)}
        typical = {name for name, count in theirs.items() if count >= share * len(other.items)}
        if not (common <= theirs.keys() and typical <= mine.keys()):
            return False
        shared = mine.keys() & theirs.keys()
        if any(self.types[name] and other.types[name] and not self.types[name] & other.types[name] for name in shared):
            return False
        return few or len(shared) >= ALIKE_SHARE * len(mine.keys() | theirs.keys())


def delimiter_of(keys: Iterable[tuple[KeyValue, ...]]) -> str:
    """The separator of a table's key segments: the first that is behind words which recur."""
    texts = [value for key in keys for value in key if isinstance(value, str)]
    best, best_count = DEFAULT_DELIMITER, 0
    for delimiter in DELIMITERS:
        heads = Counter(
            found[0]
            for text in texts
            if delimiter in text
            and len(found := segments_of(text, delimiter)) > 1
            and WORD.fullmatch(found[0])
            and (delimiter not in DOUBTFUL_DELIMITERS or len(found[0]) >= HEAD_LETTERS_MIN)
        )
        count = sum(heads.values())
        if count > best_count and len(heads) <= max(WORDS_MAX, count // SURE_VALUES):
            best, best_count = delimiter, count
        if best_count * 5 >= len(texts):  # a fifth of all keys: the others have no separator, or one inside of values
            return best
    return best


def segments_of(text: str, delimiter: str) -> list[str]:
    """The segments of a key. Times and UUIDs are one segment, also with ``:`` or ``-`` as the delimiter."""
    if delimiter == DEFAULT_DELIMITER:
        return text.split(delimiter)
    found: list[str] = []
    start = 0
    while True:
        value = TIME.match(text, start) or UUID.match(text, start) or DATE.match(text, start)
        end = value.end() if value and text[value.end() :][:1] in ("", delimiter) else text.find(delimiter, start)
        if end < 0 or end == len(text):
            return [*found, text[start:]]
        found.append(text[start:end])
        start = end + 1


def shapes_of(items: Sequence[SampledItem], delimiter: str, source: str) -> list[KeyShape]:
    """The shapes of a table's items, the most frequent first.

    Raises ``SettingsError``, which names the source, for a table whose keys have no shapes.
    """
    leaves: list[KeyShape] = []
    for group in _by_layout(items, delimiter):
        leaves += _divided(group, 0)
        if len(leaves) > LEAVES_MAX:
            raise _too_many(source, leaves)
    found = _with_rests(_absorbed(_merged(_without_tenants(leaves))), delimiter)
    if len(found) > SHAPES_MAX:
        raise _too_many(source, found)
    for shape in found:
        if _has_many_literals(shape):
            raise _too_many(source, [shape])
        _note_doubts(shape)
        if delimiter in DOUBTFUL_DELIMITERS:
            shape.note(f"divided at {delimiter!r}")
    return sorted(found, key=lambda shape: -len(shape.items))


def _by_layout(items: Sequence[SampledItem], delimiter: str) -> Collection[KeyShape]:
    """The items by the types of their key values and the numbers of their segments; each segment is a field."""
    groups: dict[tuple[tuple[type, int], ...], KeyShape] = {}
    for item in items:
        divided = [segments_of(value, delimiter) if isinstance(value, str) else [value] for value in item.key]
        layout = tuple((type(value), len(segments)) for value, segments in zip(item.key, divided, strict=True))
        if layout not in groups:
            columns = tuple(
                Column(number, TEXT if isinstance(value, str) else BINARY if isinstance(value, bytes) else NUMBER)
                for number, (value, segments) in enumerate(zip(item.key, divided, strict=True))
                for _ in segments
            )
            groups[layout] = KeyShape(columns, [], [])
        groups[layout].items.append(item)
        groups[layout].segments.append(tuple(segment for segments in divided for segment in segments))
    return groups.values()


def _too_many(source: str, shapes: Sequence[KeyShape]) -> SettingsError:
    some = ", ".join(shown(" / ".join(map(str, shape.items[0].key))) for shape in shapes[:2])
    return SettingsError(
        f"{source} has over {SHAPES_MAX} shapes of keys, such as {some}: expected keys that say what an item is with a "
        "few literals, ORDER#{order_id}. Give a recording of one application's items, or begin without --from."
    )


def _has_many_literals(shape: KeyShape) -> bool:
    """Whether one shape is really many: each item has other attributes, or begins with another capital word."""
    if len(shape.names) > ATTRIBUTES_MAX:
        return True
    first = shape.columns[0]
    if first.kind != TEXT or len(of_component(shape.columns, 0)) == 1 or shape.columns[1].is_literal:
        return False
    return sum(bool(CAPITALS.fullmatch(str(value))) for value in shape.values(0)) > SHAPES_MAX


def _divided(group: KeyShape, column: int) -> list[KeyShape]:
    """The shapes of a group whose keys have the same number of segments: one for each literal of each segment."""
    if column == len(group.columns):
        return [group]
    if group.columns[column].kind != TEXT:
        return _divided(group, column + 1)
    literals = {"", *_literals(group, column)}
    branches: dict[Column, KeyShape] = {}
    for item, segments in zip(group.items, group.segments, strict=True):
        text = str(segments[column])
        component = group.columns[column].component
        if text in literals:
            new = Column(component, LITERAL, text)
        else:
            new = Column(component, next((kind for kind, is_of in KINDS if is_of(text)), TEXT))
        if new not in branches:
            branches[new] = KeyShape(_replaced(group.columns, column, new), [], [])
        branches[new].items.append(item)
        branches[new].segments.append(segments)
    return [shape for branch in branches.values() for shape in _divided(branch, column + 1)]


def _literals(group: KeyShape, column: int) -> set[str]:
    """The words of a segment that may be literals; none if there are many words and most of them are rare."""
    counts = Counter(str(segments[column]) for segments in group.segments)
    before, behind = neighbours(group.columns, column)
    is_first = before is None and behind is not None
    words = {text for text in counts if WORD.fullmatch(text) or (is_first and WORD_WITH_DIGITS.fullmatch(text))}
    words = {text for text in words if _may_follow(text, before)}
    are_rare = sum(counts[word] for word in words) < len(words) * len(words)
    return set() if len(words) > WORDS_MAX and are_rare else words


def neighbours(columns: Columns, column: int) -> tuple[Column | None, Column | None]:
    """The segments before and behind one, in the same key attribute."""
    before, behind = columns[column - 1 : column], columns[column + 1 : column + 2]
    component = columns[column].component
    return (
        before[0] if before and before[0].component == component else None,
        behind[0] if behind and behind[0].component == component else None,
    )


def _replaced(columns: Columns, column: int, new: Column) -> Columns:
    return (*columns[:column], new, *columns[column + 1 :])


def _may_follow(text: str, before: Column | None) -> bool:
    """Whether a word may be a literal. Behind ``GAME`` the word ``chess`` is none: writers have one case for all."""
    if before is None or not before.text or _case(before.text) == LOWER:
        return True
    return _case(text) == _case(before.text)


def _case(text: str) -> str:
    return LOWER if text.islower() else UPPER if text.isupper() else CAPITAL


def _without_tenants(leaves: list[KeyShape]) -> list[KeyShape]:
    """The shapes with the first segment as a field, if each of its words has the same literals behind it."""
    candidates = [leaf for leaf in leaves if _may_begin_with_tenant(of_component(leaf.columns, 0))]
    by_rest: dict[object, list[KeyShape]] = defaultdict(list)
    for leaf in candidates:
        sort = of_component(leaf.columns, 1)
        by_rest[leaf.columns[1], len(leaf.columns) - len(sort), len(sort), sort[:1]].append(leaf)
    several = [each for each in by_rest.values() if len({leaf.columns[0] for leaf in each}) > 1]
    tenants = {leaf.columns[0] for each in several for leaf in each}
    cases = {_case(leaf.columns[1].text) for leaf in candidates}
    contrast = len(cases) == 1 and cases.isdisjoint(_case(tenant.text) for tenant in tenants)
    is_deep = any(len(of_component(leaf.columns, 0)) > 2 for leaf in candidates)
    likes = [leaf.is_like(max(each, key=lambda shape: shape.keys)) for each in several for leaf in each]
    are_alike = sum(likes) >= COMMON_SHARE * len(likes)
    if 2 * len(several) < max(len(by_rest), 1) or not are_alike or not (contrast or is_deep):
        return leaves
    doubt = f"the first segment has {len(tenants)} words, and may be a literal"
    return _with_tenant_field(leaves, tenants, "" if contrast or len(tenants) >= SURE_VALUES else doubt)


def _may_begin_with_tenant(partition: Columns) -> bool:
    """Whether two literals begin a partition key, and not only the first of them is in capitals."""
    if len(partition) < 2 or not (partition[0].is_literal and partition[1].is_literal):
        return False
    return partition[1].text.isupper() or not partition[0].text.isupper()


def _with_tenant_field(leaves: Sequence[KeyShape], tenants: Collection[Column], note: str) -> list[KeyShape]:
    """The shapes with a field in place of the tenants' words; each merged shape gets the note, unless that is empty."""
    merged = [leaf for leaf in leaves if leaf.columns[0] not in tenants]
    found: dict[Columns, list[KeyShape]] = defaultdict(list)
    for leaf in leaves:
        if leaf.columns[0] in tenants:
            found[_replaced(leaf.columns, 0, Column(0, TEXT))].append(leaf)
    return [*merged, *(_joined(columns, same, note) for columns, same in found.items())]


def of_component(columns: Columns, component: int) -> Columns:
    return tuple(column for column in columns if column.component == component)


def _joined(columns: Columns, shapes: Sequence[KeyShape], note: str = "") -> KeyShape:
    """One shape with the items and notes of several; ``note`` is one more, unless it is empty."""
    notes = list(dict.fromkeys(note for shape in shapes for note in shape.notes))
    items = [item for shape in shapes for item in shape.items]
    joined = KeyShape(columns, items, [segments for shape in shapes for segments in shape.segments], notes)
    if note:
        joined.note(note)
    return joined


def _merged(leaves: list[KeyShape]) -> list[KeyShape]:
    """The shapes after merging those that differ in one segment which is a field of few values."""
    while True:
        widest = max((len(leaf.columns) for leaf in leaves), default=0)
        for column in reversed(range(widest)):
            merged = _merged_at(leaves, column)
            if len(merged) < len(leaves):
                leaves = merged
                break
        else:
            merged = _with_fields_behind_literals(leaves)
            if merged == leaves:
                return leaves
            leaves = merged


def _with_fields_behind_literals(leaves: list[KeyShape]) -> list[KeyShape]:
    """The shapes with one more field: a segment behind a literal with several words, whatever differs in the others.

    So ``COUNTRY#FR / PARIS#{id}`` and ``COUNTRY#DE / BONN#{id}`` become comparable.
    """
    groups: dict[tuple[Columns, int, tuple[int, ...]], list[KeyShape]] = defaultdict(list)
    for leaf in leaves:
        layout = tuple(each.component for each in leaf.columns)
        for column, each in enumerate(leaf.columns):
            before, _ = neighbours(leaf.columns, column)
            if each.text and before is not None and before.text:
                groups[leaf.columns[:column], column, layout].append(leaf)
    for (_, column, _), group in sorted(groups.items(), key=lambda each: -len(each[1])):
        words = {leaf.columns[column].text for leaf in group}
        if len(words) > 1 and all(leaf.is_like(group[0]) for leaf in group):
            note = f"{len(words)} words in one segment: each may be a literal"
            others = [leaf for leaf in leaves if not any(leaf is each for each in group)]
            return [*others, *(_joined(_with_field(leaf.columns, column), [leaf], note) for leaf in group)]
    return leaves


def _with_field(columns: Columns, column: int) -> Columns:
    return _replaced(columns, column, Column(columns[column].component, TEXT))


def _merged_at(leaves: Sequence[KeyShape], column: int) -> list[KeyShape]:
    groups: dict[object, list[KeyShape]] = defaultdict(list)
    for number, leaf in enumerate(leaves):
        each = leaf.columns[column] if column < len(leaf.columns) else None
        is_text = each is not None and (each.kind == TEXT or bool(each.text))
        groups[_with_field(leaf.columns, column) if is_text else number].append(leaf)
    return [shape for group in groups.values() for same in _alike(group) for shape in _with_one_field(same, column)]


def _with_one_field(shapes: Sequence[KeyShape], column: int) -> Sequence[KeyShape]:
    """The one shape of several that differ in a segment, which is a field of it; all of them if it is a literal."""
    if len(shapes) == 1 or (segment := _Segment(shapes, column)).is_literal:
        return shapes
    if segment.is_capital:  # PROFILE and SETTINGS of a user, or sizes S and M
        for shape in shapes:
            shape.note("another shape differs in one word, and has the same attributes")
        return shapes
    return [_joined(_with_field(shapes[0].columns, column), shapes, segment.note)]


class _Segment:
    """The segment in which shapes differ that are equal in all else."""

    def __init__(self, shapes: Sequence[KeyShape], column: int) -> None:
        columns = shapes[0].columns
        self.component = columns[column].component
        self.before, self.behind = neighbours(columns, column)
        self.words = [shape.columns[column].text for shape in shapes if shape.columns[column].is_literal]
        self.is_mixed = len(self.words) < len(shapes)  # some values are no words
        self.is_attribute = bool(set.intersection(*(shape.equal_attributes(column) for shape in shapes)))

    @property
    def is_literal(self) -> bool:
        """Whether its words are literals before a field: they name the item, or separate two fields."""
        if self.behind is None or self.behind.is_literal:
            return False
        if self.before is not None:
            return not (self.before.is_literal or self.is_attribute)
        is_many = len(self.words) >= SURE_VALUES
        return self.component == 0 or not (self.is_mixed or self.is_attribute or is_many)

    @property
    def is_capital(self) -> bool:
        is_only = self.before is None and self.behind is None
        return is_only and not self.is_attribute and all(map(str.isupper, self.words))

    @property
    def note(self) -> str:
        """The doubt whether it is a field; empty where the keys leave none."""
        is_sure = self.before is not None and (
            self.is_mixed or (self.before.is_literal and len(self.words) >= SURE_VALUES)
        )
        if self.is_attribute or is_sure:
            return ""
        few = "words and other values" if self.is_mixed else f"{len(self.words)} words"
        return f"{few} in one segment: each may be a literal"


def _alike(group: Sequence[KeyShape]) -> list[list[KeyShape]]:
    found: list[list[KeyShape]] = []
    for shape in sorted(group, key=lambda shape: -len(shape.items)):
        same = next((each for each in found if each[0].is_like(shape)), None)
        if same is None:
            found.append([shape])
        else:
            same.append(shape)
    return found


def _absorbed(shapes: list[KeyShape]) -> list[KeyShape]:
    """The shapes, where a general shape takes the items of each special one, whose words are values of its fields."""
    found: list[KeyShape] = []
    for shape in sorted(shapes, key=lambda shape: -len(shape.items)):
        general = next((each for each in found if _contains(each.columns, shape.columns) and each.is_like(shape)), None)
        if general is None:
            found.append(shape)
            continue
        found[found.index(general)] = _joined(general.columns, [general, shape])
    return found


def _contains(general: Columns, special: Columns) -> bool:
    return len(general) == len(special) and all(
        one == other or (one.component == other.component and one.kind == TEXT and other.is_literal)
        for one, other in zip(general, special, strict=True)
    )


def _with_rests(shapes: list[KeyShape], delimiter: str) -> list[KeyShape]:
    """The shapes after merging those that differ in the number of their last fields, as paths do."""
    groups: dict[tuple[Columns | None, int], list[KeyShape]] = defaultdict(list)
    for number, shape in enumerate(shapes):
        head = _head_of_path(shape.columns)
        groups[head, number if head is None else shape.columns[-1].component].append(shape)
    found: list[KeyShape] = []
    for (head, component), group in groups.items():
        for same in _alike(group):
            if head is None or len(same) == 1:
                found += same
                continue
            note = "keys with more and with fewer segments have the same attributes"
            merged = _joined((*head, Column(component, REST)), same, note)
            merged.segments = [
                (*segments[: len(head)], delimiter.join(map(str, segments[len(head) :])))
                for segments in merged.segments
            ]
            found.append(merged)
    return found


def _head_of_path(columns: Columns) -> Columns | None:
    """The segments before the last fields of a key, if these may be a path: they are text, and others precede them."""
    tail = of_component(columns, columns[-1].component)
    fields = list(dropwhile(lambda column: column.is_literal, tail))
    is_path = bool(fields) and all(column.kind == TEXT for column in fields) and len(fields) < len(columns)
    return columns[: len(columns) - len(fields)] if is_path else None


def _note_doubts(shape: KeyShape) -> None:
    """Adds notes where the keys do not show what a segment is."""
    if shape.keys < SURE_ITEMS:
        shape.note(f"{shape.keys} {'item' if shape.keys == 1 else 'items'} only")
    for number, column in enumerate(shape.columns):
        if column.kind == TEXT and len(shape.values(number)) == 1:
            shape.note(f"one value of segment {number + 1}, which may be a literal")
        before, _ = neighbours(shape.columns, number)
        if column.text and before is not None and before.text:
            shape.note(f"{column.text} may be a value")

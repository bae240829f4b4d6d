"""Lookups of lists and sets of references: rows follow all referents, each backlink is there once."""

import json
from typing import TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Collect, Count, Item, Key, Lookup, Router, Row
from streamfold.derivations.expected import references_of
from streamfold.parking import FileParking
from streamfold.records.images import Image
from streamfold.records.values import decode, encode
from streamfold.routes.lookups import REFERENCES_MAX, references
from tests.helpers.looked_up import LookupShop

POST, TAG, OWNER = Key("POST#{post_id}", "META"), Key("TAG#{tag}", "META"), Key("OWNER#{owner}", "META")
BY_NAME = Key("NAME#{name}", "POSTS")


def by_names(router, **options):
    """A row for each name of a tag, with the posts that have one of that name, and how often."""

    @router.view(POST, into=BY_NAME, lookup={"tags": Lookup(TAG, tag="tags", many=True, reads=["name"])}, **options)
    def by_names(post, tags, post_id):
        for name in dict.fromkeys(each["name"] for each in tags):
            times = sum(each["name"] == name for each in tags)
            yield Row(name=name, posts=Count(), entries=Collect(f"{post_id}:{times}", into=list))


def on_posts(router):
    """The names of a post's tags, on the post."""

    @router.attributes(POST, lookup={"tags": Lookup(TAG, tag="tags", many=True, reads=["name"])})
    def on_posts(post, tags):
        return Row(tag_names=[each["name"] for each in tags])


def shop_of(*handlers, **options):
    router = Router()
    for each in handlers:
        each(router, **options)
    return LookupShop(App("lists", routers=[router]))


def rows(shop):
    """The rows as readers see them."""
    found = {key[1]: decode({"M": row}) for key, row in shop.engine.rows.items() if key[2] == "POSTS"}
    shown = {pk.removeprefix("NAME#"): row for pk, row in found.items() if row["_sf_n"]}
    return {name: (row["posts"], sorted(row["entries"])) for name, row in shown.items()}


def model(posts, tags):
    """What the rows are: the fold of the items, in eight lines that know nothing of backlinks."""
    found = {}
    for post, referred in posts.items():
        names = [tags[each] for each in referred or () if tags.get(each) is not None]
        for name in names:
            found.setdefault(name, set()).add(f"{post}:{names.count(name)}")
    return {name: (len(entries), sorted(entries)) for name, entries in found.items()}


TAGS, POSTS = st.sampled_from("abcd"), st.sampled_from("pqr")
REFERRED = st.lists(TAGS, max_size=5) | st.sets(TAGS, min_size=1, max_size=4)
STEPS = st.lists(
    st.tuples(st.just("post"), POSTS, st.none() | REFERRED)
    | st.tuples(st.just("tag"), TAGS, st.none() | st.sampled_from(["red", "blue"]))
    | st.tuples(st.just("deliver"), st.integers(1, 6), st.booleans()),
    max_size=25,
)


@settings(max_examples=60)
@given(STEPS, st.randoms(use_true_random=False))
def test_rows_follow_the_items_of_any_lists_in_any_order_of_records(steps, random):
    shop, posts, tags = shop_of(by_names), {}, {}
    waiting, delivered = [], []
    for kind, what, value in [*steps, ("deliver", 100, True)]:
        if kind != "deliver" and value is None and (posts if kind == "post" else tags).get(what) is None:
            continue  # nothing is removed
        if kind == "post":
            posts[what] = sorted(value) if isinstance(value, set) else value
            waiting.append(shop.write(f"POST#{what}", "META", None if value is None else {"tags": value}))
        elif kind == "tag":
            tags[what] = value
            waiting.append(shop.write(f"TAG#{what}", "META", None if value is None else {"name": value}))
        else:
            batch, waiting = waiting[:what], waiting[what:]
            delivered += batch
            again = random.sample(delivered, min(len(delivered), 2)) if value else []
            assert shop.process(*again, *batch) == []
    assert rows(shop) == model(posts, tags)
    wanted = {(post, tag) for post, referred in posts.items() for tag in referred or ()}
    by_tag = {tag: {post for post, each in wanted if each == tag} for _, tag in wanted}
    assert dict(shop.backlinks()) == {f"main#S#TAG#{tag}|S#META": len(found) for tag, found in by_tag.items()}


@pytest.mark.parametrize("referred", [["a", "b", "a"], {"a", "b"}])
def test_a_reference_that_is_there_twice_is_given_twice_and_has_one_backlink(referred):
    shop = shop_of(by_names)
    shop.process(shop.write("TAG#a", "META", {"name": "red"}), shop.write("TAG#b", "META", {"name": "blue"}))
    shop.process(shop.write("POST#p", "META", {"tags": referred}))
    assert rows(shop)["red"] == (1, ["p:2" if isinstance(referred, list) else "p:1"])
    assert dict(shop.backlinks()) == {"main#S#TAG#a|S#META": 1, "main#S#TAG#b|S#META": 1}


def test_names_come_in_the_order_of_the_list_and_follow_a_rename_and_a_removal():
    shop = shop_of(on_posts)
    shop.process(*(shop.write(f"TAG#{tag}", "META", {"name": f"name of {tag}"}) for tag in "ab"))

    def names(*changes):
        shop.process(*changes)
        return decode(shop.engine.read_source(("main", "POST#p", "META"))["tag_names"])

    assert names(shop.write("POST#p", "META", {"tags": ["b", "gone", "a"]})) == ["name of b", "name of a"]
    assert names(shop.write("TAG#a", "META", {"name": "new"})) == ["name of b", "new"]
    assert names(shop.write("TAG#gone", "META", {"name": "late"})) == ["name of b", "late", "new"]
    assert names(shop.write("TAG#b", "META", None)) == ["late", "new"]


def lists_of(count, begin=0):
    return {"tags": [f"t{number}" for number in range(begin, begin + count)]}


def test_forty_references_may_all_change_in_one_step():
    shop = shop_of(by_names)
    shop.process(*(shop.write(f"TAG#t{number}", "META", {"name": "red"}) for number in range(2 * REFERENCES_MAX)))
    shop.process(shop.write("POST#p", "META", lists_of(REFERENCES_MAX)))
    assert rows(shop) == {"red": (1, [f"p:{REFERENCES_MAX}"])}
    assert shop.process(shop.write("POST#p", "META", lists_of(REFERENCES_MAX, REFERENCES_MAX))) == []
    assert set(shop.backlinks()) == {f"main#S#TAG#t{n}|S#META" for n in range(REFERENCES_MAX, 2 * REFERENCES_MAX)}


def test_more_references_are_parked_with_their_number_and_the_item_s_rows_stay(tmp_path):
    shop = shop_of(by_names, on_error="park")
    shop.process(shop.write("TAG#t0", "META", {"name": "red"}), shop.write("POST#p", "META", lists_of(1)))
    parking = FileParking(str(tmp_path / "parked.jsonl"))
    shop.process(shop.write("POST#p", "META", lists_of(REFERENCES_MAX + 1)), parking=parking)
    (parked,) = map(json.loads, (tmp_path / "parked.jsonl").read_text().splitlines())
    assert "An item refers to 41 others through the lookups of 'by_names': 40 at most" in parked["error"]
    assert dict(shop.backlinks()) == {"main#S#TAG#t0|S#META": 1}


def test_all_lookups_of_a_handler_are_counted_together():
    router = Router()
    several = {name: Lookup(TAG, tag=name, many=True) for name in ("first", "second")}

    @router.view(POST, into=BY_NAME, lookup=several)
    def both(post, first, second):
        yield Row(name="all", posts=Count())

    shop = LookupShop(App("lists", routers=[router]))
    half = {"first": lists_of(25)["tags"], "second": lists_of(25, 10)["tags"]}
    assert shop.process(shop.write("POST#p", "META", half)) == []
    half["second"] = lists_of(25, 20)["tags"]
    (failure,) = shop.process(shop.write("POST#p", "META", half))
    assert "refers to 45 others" in str(failure.error)


class TagItem(TypedDict):
    name: str


def test_items_of_a_list_have_the_types_of_their_annotation():
    router = Router()
    seen = []

    @router.view(POST, into=BY_NAME, lookup={"tags": Lookup(TAG, tag="tags", many=True)})
    def typed(post: Item, tags: tuple[TagItem, ...]):
        seen.append(tags)
        yield Row(name="all", posts=Count())

    shop = LookupShop(App("lists", routers=[router]))
    shop.process(shop.write("TAG#a", "META", {"name": "red"}), shop.write("POST#p", "META", {"tags": ["a"]}))
    assert [each["name"] for each in seen[-1]] == ["red"]


VALUES = st.none() | st.lists(st.sampled_from(["a", "b", "", None])) | st.sets(st.sampled_from("ab"), min_size=1)


@given(VALUES, st.sampled_from([None, "", "OWNER#1"]), st.none() | st.sampled_from(["x", ""]))
def test_the_oracle_composes_the_same_references_by_code_of_its_own(tags, owner, inner):
    router = Router()
    lookup = {
        "tags": Lookup(TAG, tag="tags", many=True),
        "owner": Lookup(OWNER, key="owner_key", optional=True),
        "inner": Lookup(TAG, tag="ref.id", optional=True),
    }

    @router.view(POST, into=BY_NAME, lookup=lookup)
    def view(post, tags, owner, inner):
        yield Row(name="all", posts=Count())

    (route,) = App("lists", routers=[router]).routes
    image = {"post": "p", "tags": tags, "owner_key": owner, "ref": {"id": inner}}
    raw = encode(image)["M"]
    found = {each.name: references(each, Image(raw), {}, {}) for each in route.lookups}
    expected = references_of(route, image, {}, {})
    assert {name: tuple(expected.get(name, ())) for name in found} == found

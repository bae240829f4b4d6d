"""Declarations of feeds: a wrong one is refused with its line and a remedy."""

from datetime import UTC, datetime, timedelta
from inspect import currentframe

import pytest

from streamfold import App, Count, Key, Router, Row, Table
from streamfold.errors import DeclarationError, ManifestError, SettingsError
from streamfold.keys.field import TIME_TEXTS
from streamfold.settings import Settings
from streamfold.testing import Clock, Twin

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)


def declared(post=POST, audience=FOLLOW, into=FEED, keep_days=30, beside=(), **options):
    """An application with one feed."""
    router = Router()

    @router.feed(post, audience=audience, into=into, keep_days=keep_days, **options)
    def timeline(post, follow):
        return Row(text=post["text"])

    return App("social", routers=[router, *beside])


def refused(**options):
    with pytest.raises(DeclarationError) as caught:
        declared(**options)
    return str(caught.value)


def key(partition, sort, table=TABLE):
    return Key(partition, sort, table)


def test_a_feed_that_is_well_is_declared_with_the_fields_that_join_it_and_its_order():
    options = declared().routes[0].options
    assert (options.joined, str(options.order)) == (("author_id",), "{at:datetime.seconds}")


def test_a_refusal_names_the_line_of_the_handler():
    router, line = Router(), currentframe().f_lineno
    with pytest.raises(DeclarationError, match=rf"The feed at {__file__}:{line + 3} has keep_days=0"):

        @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=0)
        def timeline(post, follow):
            return Row()


def test_two_keys_without_a_common_field_are_refused():
    message = refused(audience=key("USER#{reader_id}", "FOLLOWS#{other_id}"))
    assert "which have no field in common: expected the author's field, {author_id}, in both templates." in message
    assert message.endswith("Names are labels: relabel one of them.")


def test_a_join_on_two_kinds_of_field_is_refused():
    message = refused(audience=key("USER#{reader_id}", "FOLLOWS#{author_id:06d}"))
    assert "joins on {author_id} of " in message
    assert "and {author_id:06d} of " in message
    assert message.endswith("expected one kind of field.")


def test_posts_that_no_edge_leads_to_by_one_query_are_refused():
    message = refused(post=key("USER#{author_id}#{year}", "POST#{at:datetime.seconds}#{post_id}"))
    assert "on author_id, but the partition of a post holds year too" in message
    assert "relabel a field that is shared by accident." in message


def test_a_field_that_is_shared_by_accident_is_refused_with_what_to_relabel():
    message = refused(audience=key("USER#{post_id}", "FOLLOWS#{author_id}"))
    assert "on post_id too, which the partition of a post does not hold: relabel {post_id} in one of" in message


def test_a_reader_named_as_the_author_is_refused():
    """As a table design has it where both templates say USER#{user_id}."""
    message = refused(
        post=key("USER#{user_id}", "POST#{at:datetime.seconds}#{post_id}"),
        audience=key("USER#{user_id}", "FOLLOWS#{other_id}"),
        into=key("FEED#{user_id}", "{at:datetime.seconds}#{other_id}"),
    )
    assert "which lacks {post_id} of " in message


@pytest.mark.parametrize("sort", ["POST#{post_id}", "POST#{post_id}#{at:datetime}", "POST#{number:06d}#{post_id}"])
def test_posts_without_a_time_in_front_are_refused(sort):
    post = key("USER#{author_id}", sort)
    fields = "#".join(f"{{{field.name}:{field.spec}}}".replace(":}", "}") for field in post.sort.fields)
    message = refused(post=post, into=key("FEED#{reader_id}", f"{{author_id}}#{fields}"))
    assert "whose sort key does not begin with a time: expected one behind its literal, " in message
    assert "{at:datetime}, {at:datetime.seconds}, {day:date} or {post_id:ulid}" in message


@pytest.mark.parametrize(
    ("into", "missing"),
    [
        ("{at:datetime.seconds}#{author_id}", "lacks {post_id} of Key('USER#{author_id}'"),
        ("{at:datetime.seconds}#{post_id}", "lacks {author_id} of "),
        ("{at}#{author_id}#{post_id}", "lacks its fields in the same kinds of "),
    ],
)
def test_a_target_without_a_field_of_a_source_is_refused(into, missing):
    message = refused(into=key("FEED#{reader_id}", into))
    assert missing in message
    assert "would share a row. Put every field of both source keys into the target." in message


def test_a_target_that_takes_keys_of_posts_is_refused():
    message = refused(
        post=key("USER#{author_id}", "{at:datetime.seconds}#{post_id:rest}"),
        into=key("USER#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id:rest}"),
    )
    assert "which takes keys of Key('USER#{author_id}'" in message
    assert message.endswith("Give the target a literal that the sources do not have.")


def test_a_target_in_another_order_is_refused():
    message = refused(into=key("FEED#{reader_id}", "{author_id}#{at:datetime.seconds}#{post_id}"))
    assert "expected that its sort key begins with {at:datetime.seconds}, behind a literal, and ends with" in message


def test_a_target_whose_posts_change_their_order_is_refused():
    message = refused(into=key("FEED#{reader_id}", "{at:datetime.seconds}#{post_id}#{author_id}"))
    assert "A feed is read in the order of its posts." in message


def test_what_follows_a_post_that_is_keyed_by_its_time_alone_does_not_change_its_order():
    post = key("USER#{author_id}", "POST#{post_id:ulid}")
    assert declared(post=post, into=key("FEED#{reader_id}", "{post_id:ulid}#{author_id}")).routes


def test_a_target_in_a_table_without_time_to_live_is_refused():
    plain = Table("main")
    message = refused(
        post=key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", plain),
        audience=key("USER#{reader_id}", "FOLLOWS#{author_id}", plain),
        into=key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", plain),
    )
    assert (
        "whose table has no time-to-live attribute: rows expire by it. Expected a Key(..., table=Table('main', ttl="
        in message
    )


@pytest.mark.parametrize("name", ["keep_days", "most", "inline"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", True, 10**12])
def test_a_number_that_is_none_or_out_of_bounds_is_refused(name, value):
    assert f"has {name}={value!r}: expected a whole number from 1 to " in refused(**{name: value})


def test_pull_above_what_an_invocation_writes_itself_is_refused():
    message = refused(pull_above=1999)
    assert (
        "has pull_above=1999: expected a whole number from 2000 (inline, the rows that one invocation writes" in message
    )


def test_pulled_posts_cannot_be_kept():
    message = refused(pull_above=5000, unfollow="keep")
    assert 'has pull_above=5000 and unfollow="keep": only followers at the time of reading see ' in message
    assert message.endswith("Leave one of the two out.")


def test_an_unknown_word_for_unfollow_is_refused():
    assert 'has unfollow=\'erase\': expected "remove" or "keep".' in refused(unfollow="erase")


def test_an_audience_that_is_no_key_is_refused():
    message = refused(post="POST#{author_id}")
    assert "feed('POST#{author_id}', ...): expected the Key of the posts, feed(POST, audience=FOLLOW)." in message
    message = refused(audience="FOLLOWS#{author_id}")
    assert "feed(..., audience='FOLLOWS#{author_id}'): expected the Key of the edges, audience=FOLLOW." in message


def test_a_target_that_another_handler_writes_is_refused():
    other = Router()

    @other.view(POST, into=FEED)
    def counts(post, at, author_id, post_id):
        return Row(reader_id="x", n=Count())

    assert f"Target {FEED!r} is written by " in refused(beside=[other])


def identity(**options):
    route = declared(**options).routes[0]
    return route, route.kind.identity(route)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (
            {
                "post": key("USER#{writer}", "POST#{at:datetime.seconds}#{post_id}"),
                "audience": key("USER#{reader_id}", "FOLLOWS#{writer}"),
                "into": key("FEED#{reader_id}", "{at:datetime.seconds}#{writer}#{post_id}"),
            },
            "the fields that it joins on from ['author_id'] to ['writer']",
        ),
        (
            {
                "post": key("USER#{author_id}", "POST#{day:date}#{post_id}"),
                "into": key("FEED#{reader_id}", "{day:date}#{author_id}#{post_id}"),
            },
            "the time that orders it from '{at:datetime.seconds}' to '{day:date}'",
        ),
        ({"unfollow": "keep"}, "the rows that an unfollow leaves, unfollow=, from 'remove' to 'keep'"),
    ],
)
def test_another_join_order_or_unfollow_does_not_fit_what_a_state_keeps(changed, word):
    route, before = identity()
    _, now = identity(**changed)
    with pytest.raises(ManifestError) as caught:
        route.kind.compare("timeline", before, now)
    assert f"Feed 'timeline' changed {word}: " in str(caught.value)
    assert 'App(..., retired=["timeline"])' in str(caught.value)


@pytest.mark.parametrize("changed", [{"keep_days": 7}, {"most": 5}, {"pull_above": 5000}, {"inline": 3}])
def test_bounds_may_change_on_a_state(changed):
    route, before = identity()
    route.kind.compare("timeline", before, identity(**changed)[1])


def test_a_feed_that_pulled_goes_on_pulling():
    route, before = identity(pull_above=5000)
    route.kind.compare("timeline", before, identity(pull_above=1_000_000_000)[1])
    with pytest.raises(ManifestError, match=r"Feed 'timeline' has no pull_above= any more.* pull_above=1_000_000_000,"):
        route.kind.compare("timeline", before, identity()[1])


def test_a_function_without_a_queue_for_large_audiences_does_not_start():
    route = declared().routes[0]
    with pytest.raises(
        SettingsError, match=r"Feed 'timeline' .* has no queue for large audiences: expected STREAMFOLD"
    ):
        route.kind.check_settings(route, Settings())
    route.kind.check_settings(route, Settings(group="search"))
    route.kind.check_settings(route, Settings(engine="embedded:shop.db"))
    route.kind.check_settings(route, Settings(jobs="https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"))


@pytest.mark.parametrize("spec", TIME_TEXTS)
@pytest.mark.parametrize("pulled", [{}, {"inline": 1, "pull_above": 1}])
def test_a_feed_is_in_the_order_of_every_text_of_a_time(spec, pulled):
    router, at = Router(), datetime(2026, 3, 1, 8, tzinfo=UTC)
    post = key("USER#{author_id}", f"POST#{{at:{spec}}}#{{post_id}}")

    @router.feed(
        post,
        audience=FOLLOW,
        into=key("FEED#{reader_id}", f"{{at:{spec}}}#{{author_id}}#{{post_id}}"),
        keep_days=30,
        **pulled,
    )
    def timeline(post, follow):
        return Row(text=post["text"])

    twin = Twin(App("social", routers=[router]), clock=Clock())
    for reader in ("ana", "cy"):
        twin.put(FOLLOW, reader_id=reader, author_id="bea")
    for number in (2, 0, 1):
        twin.put(post, author_id="bea", post_id="p", at=at + timedelta(seconds=number), text=number)
    twin.put(post, author_id="bea", post_id="old", at=at - timedelta(days=40), text=-1)

    first = twin.feed(timeline, reader_id="ana", limit=2)
    assert [row["text"] for row in first.rows] == [2, 1]
    assert [row["text"] for row in twin.feed(timeline, reader_id="ana", cursor=first.cursor).rows] == [0]


def test_a_target_that_does_not_tell_all_texts_of_a_time_apart_is_refused():
    message = refused(post=key("USER#{author_id}", "POST#{at:datetime.any}#{post_id}"))
    assert "which lacks its fields in the same kinds of " in message

"""Sessions: what they leave behind when they end or expire, and what goes with them."""

from collections import Counter, defaultdict

import pytest

from handlers import app
from handlers.sessions import CART, CART_LINE, EXPIRED, SESSION, SIGN_INS
from streamfold.read import archived
from streamfold.testing import Twin
from tests.systems import Replayed


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return f"file:{tmp_path_factory.mktemp('ended')}"


@pytest.fixture(scope="module")
def sessions(place):
    return Replayed("sessions", archive=place)


@pytest.fixture(scope="module")
def expired(sessions):
    """The ids of the sessions that time to live removed."""
    removed = [record for record in sessions.whole_records if "userIdentity" in record]
    names = [SESSION.match({n: v["S"] for n, v in record["dynamodb"]["Keys"].items()}) for record in removed]
    return {name["session_id"] for name in names}


def test_users_have_the_sessions_that_expired_and_not_those_that_they_ended(sessions, expired):
    users = {name: images[0]["user_id"] for (name,), images in sessions.images(SESSION).items()}
    assert set(sessions.rows(EXPIRED)) == {(users[name], name) for name in expired}
    assert len(expired) < len(users)


def test_sign_ins_count_every_session_that_ever_began(sessions):
    days = Counter(images[0]["started"][:10] for images in sessions.images(SESSION).values())
    assert sessions.rows(SIGN_INS) == {(day,): {"sign_ins": count} for day, count in days.items()}


def test_carts_come_to_what_is_in_them(sessions):
    carts = defaultdict(list)
    for (session_id, _), line in sessions.items(CART_LINE).items():
        carts[session_id].append(line["price"] * line["quantity"])
    assert carts
    expected = {(name,): {"total": sum(prices), "lines": len(prices)} for name, prices in carts.items()}
    assert sessions.rows(CART) == expected


def test_every_session_that_ended_is_in_the_archive_which_knows_how(sessions, expired, place):
    kept = {SESSION.match(each.item)["session_id"]: each for each in archived(place, "ended_sessions")}
    ended = {name for (name,), images in sessions.images(SESSION).items() if images[-1] is None}
    assert set(kept) == ended
    assert {name for name, each in kept.items() if each.expired} == expired


def test_a_session_that_expires_takes_its_cart_along():
    twin = Twin(app)
    twin.put(SESSION, session_id="s1", user_id="ana", started="2026-03-01T08:00:00Z")
    twin.put(CART_LINE, session_id="s1", sku="TEA", price=3, quantity=2)
    assert twin.row(CART, session_id="s1")["total"] == 6
    twin.expire(SESSION, session_id="s1")
    assert twin.row(CART, session_id="s1") is None
    assert [row["PK"] for row in twin.rows(EXPIRED)] == ["USER#ana"]

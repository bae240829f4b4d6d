"""Policies: what a decorator takes, what it refuses with the corrected line, and how they are shown."""

import pytest

from streamfold import Key, Router
from streamfold.errors import DeclarationError
from streamfold.routes.route import AGE_SECONDS_MAX, ATTEMPTS_MAX, RETRY, Policy

ORDER = Key("ORDER#{order_id}", "METADATA")
TOTAL = Key("ORDER#{order_id}", "TOTAL")


def handler(item):
    yield


def declared(kind, **policy):
    """The route that a decorator with this policy makes."""
    router = Router()
    if kind == "audit":
        router.audit(ORDER, **policy)
    else:
        getattr(router, kind)(ORDER, into=TOTAL, **policy)(handler)
    return router.routes[0]


@pytest.mark.parametrize("kind", ["view", "index", "on", "audit"])
def test_every_decorator_takes_a_policy(kind):
    assert declared(kind).policy == RETRY
    policy = {"on_error": "park", "attempts_max": 3, "age_seconds_max": 60}
    assert declared(kind, **policy).policy == Policy(**policy)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (RETRY, "retry"),
        (Policy("park"), "park"),
        (Policy("park", 1), "park after 1 attempt"),
        (Policy("park", 3), "park after 3 attempts"),
        (Policy("park", None, 60), "park older than 60 s"),
        (Policy("park", 3, 60), "park after 3 attempts or older than 60 s"),
    ],
)
def test_policy_is_shown_in_words(policy, text):
    assert str(policy) == text


@pytest.mark.parametrize("kind", ["view", "audit"])
def test_unknown_policy_is_refused_with_the_corrected_line(kind):
    at = "@" * (kind == "view")
    with pytest.raises(DeclarationError) as raised:
        declared(kind, on_error="drop")
    assert str(raised.value).endswith(
        f'has on_error=\'drop\': expected "retry" or "park", {at}router.{kind}(..., on_error="park").'
    )
    assert "test_policy.py:" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "most", "example"), [("attempts_max", ATTEMPTS_MAX, 3), ("age_seconds_max", AGE_SECONDS_MAX, 3600)]
)
@pytest.mark.parametrize("value", [0, -1, True, "3", 2.5, "most"])
def test_number_that_does_not_fit_is_refused_with_the_corrected_line(name, most, example, value):
    value = most + 1 if value == "most" else value
    with pytest.raises(DeclarationError) as raised:
        declared("on", on_error="park", **{name: value})
    assert str(raised.value).endswith(
        f"has {name}={value!r}: expected a whole number from 1 to {most}, "
        f'@router.on(..., on_error="park", {name}={example}).'
    )


@pytest.mark.parametrize("name", ["attempts_max", "age_seconds_max"])
def test_limit_without_parking_is_refused(name):
    with pytest.raises(DeclarationError) as raised:
        declared("view", **{name: 5})
    assert str(raised.value).endswith(
        f'has {name}=5 and on_error="retry", which never gives a record up: '
        f'@router.view(..., on_error="park", {name}=5).'
    )
    assert declared("view", on_error="park", **{name: 1}).policy.parks

"""Wakes: state items that say when an item is derived again, because a moment comes that its handler asked for.

The text of an item's contribution begins with ``["<",SINCE,WAKE,{}]``. SINCE is the greatest moment that the handler
asked for and that had come; WAKE is the moment of the wake in place, at most the smallest that had not. The wake itself
is put and deleted in the transaction that writes the ledger item, and nowhere else: so a ledger item names a wake
exactly if it is there.

A wake that is early stays: the visit at it finds the later moment. So a moment that moves to later with each record
writes no wake each time.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from streamfold.errors import HandlerError, damaged
from streamfold.ledger.contribution import (
    BEHIND,
    BEYOND,
    DIGEST_BYTES,
    WAITS,
    RowContribution,
    moments_of,
    stored_key_text,
    stored_rows,
    stored_text,
)
from streamfold.ledger.state_keys import wakes_partition
from streamfold.routes.moments import moment_microseconds, moment_text
from streamfold.writes.guarded import DeleteState, PutState, StateKey

if TYPE_CHECKING:
    from streamfold.records.change import ItemKey
    from streamfold.records.values import Number

STRIPES = "0123456789abcdef"
"""First digits of a wake's name, a partition each: one takes some 500 such writes a second, a handler 8,000."""
BEFORE_ALL_WAKES = "!"
"""Sorts before each moment."""
DELAY_SECONDS, DELAY_SECONDS_MAX = 300, 3600
"""A wake at which the handler raised is put off for so long; the delay doubles up to the second. A bad item then costs
one visit an hour.
"""
VISITED_WITHIN_SECONDS = 600
"""A wake that is later than this raises an alarm (``deploy.alarms``)."""
CALLED_ONCE = '{"once":"1"}]'
"""How the moments of a timer end whose handler was called."""
DELAY, FIRST_MOMENT = "delay", "first"
"""In the text of a wake that was put off: by how many seconds, and the moment of the first wake, epoch seconds."""


class Times(NamedTuple):
    """The moments that a handler asked for in one call, in epoch microseconds."""

    at: int  # the time of the call
    came: int | None  # the greatest moment that had come
    next: int | None  # the smallest moment that had not
    holds: bool = False  # a visit at a wake leaves it in place if something is to be finished after the commit
    holds_rows: bool = False  # also where rows that are shown later did not change
    renews: bool = False  # a repair: the wake is put again, in case it was lost
    put_off_seconds: int = 0  # the handler raised: the wake comes so much later
    first: int | None = None  # then: the moment of the first wake
    once: bool = False  # of a handler that is called once at the one moment that was asked for
    called_at: int | None = None  # then: the moment at which the visit has called it

    def stripe_to_visit(self, item: "ItemKey", text: str) -> int | None:
        """The number of the partition in which a step behind a stored text puts a wake whose moment is past. None: it
        puts no such wake.
        """
        before = Waits.of(text)
        after = before.after(self)
        if after.wake is None or after.wake == before.wake or after.wake > self.at:
            return None
        return STRIPES.index(_digest(item)[0])


class Waits(NamedTuple):
    """What a contribution's text says of moments, in epoch microseconds."""

    since: int | None = None
    wake: int | None = None
    once: bool = False  # a handler was called once at SINCE: the ledger item is kept, and it is not called again

    @classmethod
    def of(cls, text: str) -> "Waits":
        """Of the text of a contribution. Raises ``EngineError`` for one that is damaged."""
        array = moments_of(text)
        if not array:
            return cls()
        try:
            _, since, wake, *_ = array.strip("[]").split(",")
            moments = [None if each == "null" else moment_microseconds(each.strip('"')) for each in (since, wake)]
            return cls(moments[0], moments[1], array.endswith(CALLED_ONCE))
        except (HandlerError, ValueError):
            raise damaged("A ledger item") from None

    @property
    def text(self) -> str:
        """The array in a contribution's text; "" if there is no moment."""
        if self.since is None and self.wake is None:
            return ""
        end = CALLED_ONCE if self.once else "{}]"
        return f'["{WAITS}",{_quoted(self.since)},{_quoted(self.wake)},{end}'

    def after(self, times: Times) -> "Waits":
        """What is stored behind a call. A wake that is early, and has not come, stays."""
        if times.once:
            return self._after_once(times)
        wake = times.next
        if self.wake is not None and wake is not None and self.wake > times.at:
            wake = min(self.wake, wake)
        return Waits(times.came, wake)

    def _after_once(self, times: Times) -> "Waits":
        """Behind a call for the moment of a timer. One that came has a wake too, until a visit has called the handler:
        only visits call it, because a wake outlives a process that dies before the call.
        """
        moment = times.came if times.next is None else times.next
        if moment is None:
            return Waits()
        if moment == times.called_at or (self.once and self.since == moment):
            return Waits(moment, None, once=True)
        if self.wake is None or self.wake <= times.at:
            return Waits(None, moment)
        # A wake that was put off has the moment beside it, and stays.
        return self if self.since == moment else Waits(None, min(self.wake, moment))


def waits_after(text: str, times: Times | None, *, asks_time: bool, holds: bool = False) -> Waits:
    """What a step stores of moments. ``text``: of the stored contribution. ``times``: of the handler's call; None: it
    was not called. ``holds``: the wake in place stays there.
    """
    stored = Waits.of(text)
    if times is None:  # what is stored stays, unless the handler asks for no time any more
        return stored if asks_time else Waits()
    return Waits(times.came, stored.wake) if holds else stored.after(times)


def wake_writes(
    application: str, handler: str, item: "ItemKey", before: Waits, after: Waits, times: Times | None
) -> list[PutState | DeleteState]:
    """The writes that exchange the wake in place."""
    if before.wake == after.wake and not (times is not None and times.renews):
        return []
    found = list[PutState | DeleteState]()
    if before.wake is not None and before.wake != after.wake:
        found.append(DeleteState(wake_key(application, handler, item, before.wake)))
    if after.wake is not None:
        text = wake_text(item, times.put_off_seconds, times.first) if times is not None else wake_text(item)
        found.append(PutState(wake_key(application, handler, item, after.wake), text))
    return found


def wake_key(application: str, handler: str, item: "ItemKey", moment: int) -> StateKey:
    digest = _digest(item)
    return StateKey(wakes_partition(application, handler, digest[0]), f"{moment_text(moment)}{BEHIND}{digest}")


def _digest(item: "ItemKey") -> str:
    name = stored_key_text(item).encode(errors="surrogatepass")
    return blake2b(name, digest_size=DIGEST_BYTES).hexdigest()


def wake_text(item: "ItemKey", put_off_seconds: int = 0, first: int | None = None) -> str:
    amounts: dict[str, Number] = {DELAY: put_off_seconds, FIRST_MOMENT: first or 0} if put_off_seconds else {}
    return stored_text({item: RowContribution(amounts, None, "")})


class Wake(NamedTuple):
    """A wake as it is listed."""

    position: str  # its sort key
    moment: int
    item: "ItemKey"
    put_off_seconds: int = 0  # the handler raised at it so much before
    first: int | None = None  # then: the moment of the first wake

    @classmethod
    def of(cls, position: str, text: str) -> "Wake":
        """Raises ``EngineError`` for one that is damaged."""
        try:
            ((item, contribution),) = stored_rows(text).items()
            amounts = contribution.amounts
            moment = moment_microseconds(position.partition(BEHIND)[0])
            return cls(position, moment, item, int(amounts.get(DELAY, 0)), int(amounts.get(FIRST_MOMENT, 0)) or None)
        except (HandlerError, ValueError):
            raise damaged("A wake") from None

    @property
    def first_moment(self) -> int:
        """The moment at which the item was to be derived again first."""
        return self.first or self.moment

    @property
    def next_delay_seconds(self) -> int:
        """By how many seconds it is put off if the handler raises again."""
        return min(max(self.put_off_seconds * 2, DELAY_SECONDS), DELAY_SECONDS_MAX)


def is_awaited(text: str, now: int) -> bool:
    """Whether the moment of the wake that a contribution names came a short time ago: a visit is on its way."""
    wake = Waits.of(text).wake
    return wake is not None and now - VISITED_WITHIN_SECONDS * 1_000_000 <= wake <= now


def until(moment: int) -> str:
    """The end of the sort keys of wakes up to a moment."""
    return f"{moment_text(moment)}{BEYOND}"


def partitions(application: str, handler: str) -> Iterator[str]:
    """The partitions of a handler's wakes."""
    for stripe in STRIPES:
        yield wakes_partition(application, handler, stripe)


def _quoted(moment: int | None) -> str:
    return "null" if moment is None else f'"{moment_text(moment)}"'

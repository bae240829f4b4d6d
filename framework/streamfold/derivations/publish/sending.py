"""Sends the messages of a batch: requests side by side, of one item one message after the other.

A message that a destination does not take fails its own record only, and holds the later ones of its item. A lost
answer, a crash and a redelivery repeat a message with the same id. With ``once=True`` a claim is read before the
request and written after it, so that a later delivery sends nothing.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from streamfold.commit.outcome import HELD, Failed, Held, Outcome, explained
from streamfold.derivations.derivation import Finishing
from streamfold.derivations.outside_calls import CallLimits, OutsideCalls, process_rate
from streamfold.derivations.publish.addresses import address_of
from streamfold.derivations.publish.envelope import Message, json_text
from streamfold.derivations.publish.local import OPENED, LocalTarget, MessageFolder
from streamfold.derivations.publish.options import AT_ONCE, BUCKET, NOT_PUBLISHED, SENT_BEFORE, Published, published_of
from streamfold.derivations.publish.targets import (
    DestinationThrottled,
    Limits,
    MessageTarget,
    RequestRefused,
    open_target,
)
from streamfold.errors import EngineError, NotStarted, SettingsError, Unprocessable
from streamfold.ledger.state_keys import claim_key
from streamfold.parking import make_client, s3_location
from streamfold.routes.route import Route
from streamfold.runtime import CallSlots, Runtime
from streamfold.settings.readers import FOLDER
from streamfold.writes.guarded import StateKey

if TYPE_CHECKING:
    from streamfold.derivations.archive.locations import ArchiveLocation

THROTTLED_TRIES_MAX = 60
"""Tries of a throttled request without a deadline: some minutes of pauses (``engines.deadline``)."""


class Prepared(NamedTuple):
    """A message that its destination takes, with the data that are put elsewhere, or the error of one that it does
    not take.
    """

    message: Message
    bytes: int  # in a request
    large: str | None = None  # data for the place of large data
    error: Exception | None = None


class Sending:
    """Sends the messages of one batch."""

    def __init__(self, finishing: Finishing) -> None:
        self.runtime = finishing.runtime
        self.finishing = finishing
        self.outcome = Outcome()

    def send(self, messages: Iterable[Message]) -> Outcome:
        """Sends messages, handler by handler; those that were not sent are among the failed."""
        for route, own in _by_route(messages).items():
            try:
                target = target_of(self.runtime, route)
                if target is None:
                    self.outcome.count(NOT_PUBLISHED, route.name, len(own))
                    continue
                waiting = self._not_sent_before(route, own) if published_of(route).once else own
                prepared = [prepared_for(target, message) for message in waiting]
            except (EngineError, SettingsError) as error:
                changes = (change for message in own for change in message.changes)
                self.outcome.failed += self.finishing.failures(changes, route, error)
                continue
            self._send(route, prepared, target)
        return self.outcome

    def _not_sent_before(self, route: Route, messages: Sequence[Message]) -> list[Message]:
        keys = {message.id: claim_of(self.runtime, message) for message in messages}
        found = self.runtime.engine.read_state(keys.values(), consistent=True)
        waiting = [message for message in messages if keys[message.id] not in found]
        if len(waiting) < len(messages):
            self.outcome.count(SENT_BEFORE, route.name, len(messages) - len(waiting))
        return waiting

    def _send(self, route: Route, prepared: Sequence[Prepared], target: MessageTarget) -> None:
        options = published_of(route)
        limits = options.limits or CallLimits(AT_ONCE)
        # No threads, for which a file is not safe. A proof makes calls in flight in any order.
        slots = self.runtime.slots if self.runtime.store.is_local else CallSlots()
        calls = OutsideCalls[Prepared](
            self.runtime,
            lambda each: each.message.group,
            lambda each, error: self._fails(route, each, error),
            limits,
            rate=process_rate(self.runtime, route.name, limits),
            flight=slots.flight() if isinstance(target, LocalTarget) else None,
            most=target.limits.entries,
            accepts=lambda together, another: accepts(target.limits, together, another),
        )
        requests = MessageRequests(calls.calling, target, options)
        calls.run(prepared, requests.send)
        self.outcome.tally(route.name).written += len(requests.sent)

    def _fails(self, route: Route, each: Prepared, error: Exception | None) -> bool:
        """Notes a failure; returns whether later messages of the item wait for it."""
        if error is None:
            self.outcome.failed += [Failed(change, route, Held(HELD)) for change in each.message.changes]
            return True
        failures = self.finishing.failures(each.message.changes, route, explained(route, error))
        self.outcome.failed += failures
        return bool(failures)


def _by_route(messages: Iterable[Message]) -> dict[Route, list[Message]]:
    """The messages of each publisher, each id once: a batch may have one record twice."""
    found: dict[Route, dict[str, Message]] = {}
    for each in messages:
        own = found.setdefault(each.route, {})
        same = own.get(each.id)
        own[each.id] = each if same is None else same._replace(changes=(*same.changes, *each.changes))
    return {route: [*own.values()] for route, own in found.items()}


def target_of(runtime: Runtime, route: Route) -> MessageTarget | None:
    """Where the messages of a route go in this run; None if it must not reach any place."""
    options = published_of(route)
    if (local := runtime.opened.get(OPENED)) is not None:
        return LocalTarget(local.send_entries, runtime.chunk_actions)  # which proofs draw: requests of several sizes
    folder = runtime.settings.publish
    if folder is not None and runtime.outside is not False:
        return LocalTarget(MessageFolder(folder.removeprefix(FOLDER)).send_entries)
    if not runtime.outside:
        return None
    address = address_of(options.to, runtime.settings, f"Publisher {route.name!r} ({route.declared_at})")
    if address.text not in runtime.opened:
        runtime.opened[address.text] = open_target(address, make_client)
    target: MessageTarget = runtime.opened[address.text]
    return target


def claim_of(runtime: Runtime, message: Message) -> StateKey:
    """The claim that a message was sent."""
    (change, *_) = message.changes
    return claim_key(runtime.application.name, message.route.name, change.item, change.identity_text)


def prepared_for(target: MessageTarget, message: Message) -> Prepared:
    """A message as its destination takes it: data that are too long go to the place of large data."""
    longest = target.limits.message_bytes
    if (size := target.bytes_of(message)) <= longest:
        return Prepared(message, size)
    options = published_of(message.route)
    if options.large is None:
        return Prepared(
            message,
            size,
            error=Unprocessable(
                f"The message has {size:,} bytes, and {str(options.to)!r} takes {longest:,}. Publish less: data=[...], "
                'or a function that makes the data; or give data of any size a place: large="s3://BUCKET/PREFIX".'
            ),
        )
    bucket, prefix = s3_location(options.large)
    address = f"{BUCKET}{bucket}/{prefix}{message.id}.json"
    short = message._replace(data=json_text({"large": address, "bytes": len(message.data.encode())}))
    if (size := target.bytes_of(short)) > longest:
        return Prepared(
            message,
            size,
            error=Unprocessable(
                f"The message has {size:,} bytes even without its data, and {str(options.to)!r} takes {longest:,}."
            ),
        )
    # A run without AWS gives the address alone: it must not write there.
    return Prepared(short, size, None if isinstance(target, LocalTarget) else message.data)


def accepts(limits: Limits, together: Sequence[Prepared], another: Prepared) -> bool:
    """Whether a message fits into a request beside others."""
    return (
        sum(each.bytes for each in (*together, another)) <= limits.bytes
        and not another.error
        and not any(each.error for each in together)
    )


class MessageRequests:
    """Sends requests with the messages of different items. Called in several threads at a time."""

    def __init__(self, runtime: Runtime, target: MessageTarget, options: Published) -> None:
        self.runtime = runtime
        self.target = target
        self.options = options
        self.sent: list[str] = []  # ids

    def send(self, together: Sequence[Prepared]) -> list[Exception | None]:
        """The errors of the messages of one request, in their order."""
        errors: list[Exception | None] = [each.error for each in together]
        waiting = [number for number, error in enumerate(errors) if error is None]
        for number in waiting:
            errors[number] = self._put_large(together[number])
        waiting = [number for number in waiting if errors[number] is None]
        results = self._sent([together[number].message for number in waiting]) if waiting else []
        for number, result in zip(waiting, results, strict=True):
            errors[number] = result if result is not None else self._note(together[number].message)
        return errors

    def _sent(self, messages: Sequence[Message]) -> list[Exception | None]:
        """Sends messages until none is throttled any more, or the time is over."""
        results = self._request(messages)
        for tries in range(THROTTLED_TRIES_MAX):
            again = [number for number, error in enumerate(results) if isinstance(error, DestinationThrottled)]
            if not again:
                break
            try:
                self.runtime.back_off(tries, throttled=True)
            except NotStarted:  # the records of throttled messages are retried
                break
            for number, result in zip(again, self._request([messages[number] for number in again]), strict=True):
                results[number] = result
        return results

    def _request(self, messages: Sequence[Message]) -> list[Exception | None]:
        """One request; one for each message if a destination refuses them together for one of them."""
        try:
            return [*self.target.send(messages)]
        except RequestRefused as error:
            if len(messages) == 1:
                return [error]
            return [result for message in messages for result in self._request([message])]
        except EngineError as error:
            return [error] * len(messages)

    def _put_large(self, prepared: Prepared) -> Exception | None:
        """Puts large data to its place before its message: a reader of the message can read the data."""
        if prepared.large is None:
            return None
        try:
            self._large_location.write(f"{prepared.message.id}.json", prepared.large.encode())
        except EngineError as error:
            return error
        return None

    @cached_property
    def _large_location(self) -> "ArchiveLocation":
        from streamfold.derivations.archive.locations import open_location  # large data are rare

        return open_location(str(self.options.large))

    def _note(self, message: Message) -> Exception | None:
        """Notes a message that was sent; with ``once`` as a claim, which is written at any time."""
        if self.options.once:
            try:
                claim = {"ttl": self.runtime.expires_at}
                self.runtime.store.swap_state(claim_of(self.runtime, message), claim, 0)
            except EngineError as error:  # the record is delivered again, and its message repeats its id
                return error
        self.sent.append(message.id)
        return None

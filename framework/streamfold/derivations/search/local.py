"""The documents of a local state: an index that follows the version rules of OpenSearch."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from streamfold.derivations.search.accepts import Accepts
from streamfold.derivations.search.field_values import NUMBER_LETTERS_MAX
from streamfold.derivations.search.options import GONE, OWN
from streamfold.derivations.search.sink import CONFLICT, ID_BYTES_MAX, VERSION_MAX, Action, Answer, Found
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import Engine, Entries
from streamfold.errors import Contended, EngineError, redacted
from streamfold.writes.guarded import StateKey

PAGE_DOCUMENTS = 250
"""Documents that are read at once."""
PARTITION = "search#"
"""The begin of an index's partition in the state."""


ALIASES = "search"
"""The partition of aliases. An alias without an item points to an index of its own name."""


def local_indexes(engine: Engine) -> list[str]:
    """The names of the indexes in a local state, as readers use them: aliases before their indexes."""
    keys = [(item["pk"]["S"], item["sk"]["S"]) for item in engine.state_items()]
    aliases = {name for partition, name in keys if partition == ALIASES}
    behind = set(resolved(engine, aliases).values())
    names = {partition.removeprefix(PARTITION) for partition, _ in keys if partition.startswith(PARTITION)}
    return sorted((names - behind) | aliases)


def resolved(engine: Engine, names: Collection[str]) -> dict[str, str]:
    """The indexes behind names."""
    keys = [StateKey(ALIASES, name) for name in names if not name.endswith(OWN)]
    found = {key.sk: str(item["s"]) for key, item in engine.read_state(keys, consistent=True).items()} if keys else {}
    return {name: name.removesuffix(OWN) if name.endswith(OWN) else found.get(name, name) for name in names}


class HeldDocument(NamedTuple):
    """The version and document that the index holds under an id."""

    version: int
    body: dict[str, Any] | None  # None: deleted


class LocalIndex:
    """A sink that keeps documents as state items, one for each id.

    A deleted document keeps its version for ever. With ``forgets`` no version is kept, as in OpenSearch after
    ``index.gc_deletes``, which proofs need.

    ``accepts`` returns the check of an index by its name: a document that the check refuses gets status 400. None for
    an undeclared index, which takes every object.
    """

    writes = "bulk"  # the call that a proof lets fail

    def __init__(
        self, engine: Engine, accepts: Callable[[str], Accepts | None] = lambda _: None, *, forgets: bool = False
    ) -> None:
        self.engine = engine
        self.accepts = accepts
        self.forgets = forgets

    def check(self, index: str) -> None:
        """Does nothing: documents that are gone are hidden under every name."""

    def bulk(self, actions: Sequence[Action]) -> list[Answer]:
        for action in actions:
            _check(action)
        behind = resolved(self.engine, {action.index for action in actions})
        return [self._write(behind[action.index], action) for action in actions]

    def read(self, index: str, ids: Collection[str]) -> dict[str, Found]:
        own = self._behind(index)
        keys = [_key(own, name) for name in ids]
        found = ((key.sk, _held(item["s"])) for key, item in self.engine.read_state(keys, consistent=True).items())
        return {name: Found(name, held.version, held.body) for name, held in found if held.body is not None}

    def documents(self, index: str, *, hidden: bool = False) -> Iterator[Found]:
        after, own = "", self._behind(index)
        while page := self.engine.read_entries(Entries(PARTITION + own, PAGE_DOCUMENTS, after)):
            for name, text in page:
                version, body = _held(text)
                if body is not None and (hidden or body.get(GONE) is None):
                    yield Found(name, version, body)
            after = page[-1][0]

    def _behind(self, index: str) -> str:
        return resolved(self.engine, [index])[index]

    def _write(self, index: str, action: Action) -> Answer:
        if refused := self._refusal(action):
            return refused
        key = _key(index, action.id)
        for _ in range(TRIES_MAX):
            item = self.engine.read_state([key], consistent=True).get(key)
            held = _held(item["s"]) if item else None
            answer = self._answer(action, held)
            if answer.status == CONFLICT or self.engine.swap_state(key, {"s": _text(action)}, item["r"] if item else 0):
                return answer
        raise Contended(f"Others wrote the same document at {TRIES_MAX} tries; the record is redelivered.")

    def _refusal(self, action: Action) -> Answer | None:
        """The answer to an action whose document or id OpenSearch refuses."""
        if not action.id:
            return Answer(400, "the id is empty")
        if action.body is None:
            return None
        try:
            body = _decode(action.body)
        except ValueError as error:
            return Answer(400, f"failed to parse: {error}")
        if not isinstance(body, dict):
            return Answer(400, "failed to parse: the document is no object")
        accepts = self.accepts(action.index)
        why = accepts.refusal(body) if accepts else None
        return None if why is None else Answer(400, why)

    def _answer(self, action: Action, held: HeldDocument | None) -> Answer:
        if held is not None and held.body is None and self.forgets:
            held = None
        if held is not None and action.version <= held.version:
            reason = f"current version [{held.version}] is higher or equal to the one provided [{action.version}]"
            return Answer(CONFLICT, f"version conflict, {reason}", held.version)
        exists = held is not None and held.body is not None
        if action.body is None:
            return Answer(200 if exists else 404)
        return Answer(200 if exists else 201)


def _check(action: Action) -> None:
    """Raises ``EngineError`` for an action with which OpenSearch refuses the whole request."""
    if (size := len(action.id.encode(errors="replace"))) > ID_BYTES_MAX:
        raise EngineError(f"The id {redacted(action.id)} has {size} bytes: expected {ID_BYTES_MAX} at most.")
    if not 0 <= action.version <= VERSION_MAX:
        raise EngineError(f"The version {action.version} is out of range: expected 0 to {VERSION_MAX}.")


def _decode(text: str | bytes) -> Any:
    return json.loads(text, parse_float=_decimal, parse_int=_integer, parse_constant=_refuse)


def _decimal(text: str) -> Decimal:
    _check_length(text)
    return Decimal(text)


def _integer(text: str) -> int:
    _check_length(text)
    return int(text)


def _check_length(number: str) -> None:
    if len(number) > NUMBER_LETTERS_MAX:
        raise ValueError(f"number value length ({len(number)}) exceeds the maximum allowed ({NUMBER_LETTERS_MAX})")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _key(index: str, name: str) -> StateKey:
    return StateKey(PARTITION + index, name)


def _text(action: Action) -> str:
    # The body is inserted as text: parsing it would change the digits of its numbers.
    body = action.body.decode() if action.body is not None else "null"
    return f'{{"v":{action.version},"body":{body}}}'


def _held(text: str) -> HeldDocument:
    item = _decode(text)
    return HeldDocument(item["v"], item["body"])

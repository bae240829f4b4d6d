"""What search needs of an index: a few calls, each answered for every document, with external versions.

``LocalIndex`` keeps documents in a local state, ``OpenSearchIndex`` sends them to a server. One contract test runs over
both (``tests/search/test_sinks.py``).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from streamfold.derivations.search.names import GONE
from streamfold.errors import EngineUnavailable

ID_BYTES_MAX = 512
"""Length of a document's id. One that is longer fails its whole request (OpenSearch, RestIndexAction; measured on
2.19.6 and 3.6.0)."""
VERSION_MAX = 2**63 - 1
"""The largest external version (OpenSearch, ``version_type=external``)."""
CONFLICT = 409
"""The status of a document that the index holds in the same version or a newer one."""
BUSY = 429
"""The status of a document, or of a request, that the server is too busy for."""
VISIBLE = {"bool": {"must_not": [{"exists": {"field": GONE}}]}}
"""The filter of an alias that hides what is gone."""


class TooLarge(Exception):  # noqa: N818 - an outcome, not a mistake
    """A request was larger than the server takes (HTTP 413); a smaller one may be taken."""


class IndexBusy(EngineUnavailable):  # an outcome, not a mistake
    """A server that is busy refused a whole request (HTTP 429): nothing of it was written. A smaller one may pass."""


@dataclass(frozen=True, slots=True)
class Action:
    """One document that is to be written, or deleted, in one version."""

    index: str  # the real name of the alias or index
    id: str
    version: int
    body: bytes | None  # the document as JSON in UTF-8; None: deleted


class Answer(NamedTuple):
    """What became of one action."""

    status: int  # as HTTP has it: 200 and 201 written, 404 nothing to delete, 409 a newer version is there
    reason: str = ""  # why it was refused, in the server's words
    held: int | None = None  # in conflict: the version that the index holds

    @property
    def is_done(self) -> bool:
        return self.status in (200, 201, 404)


class Found(NamedTuple):
    """A document as the index holds it."""

    id: str
    version: int
    body: dict[str, Any]  # numbers as int or Decimal


class Sink(Protocol):
    """Where documents go."""

    def check(self, index: str) -> None:
        """Raises ``EngineError`` unless this is an alias that hides what is gone. What passed is not asked again."""
        ...

    def bulk(self, actions: Sequence[Action]) -> list[Answer]:
        """Writes documents in one request; the answers are in the order of the actions.

        An action takes effect if its version is greater than the one that the index holds. Raises ``TooLarge``;
        ``EngineUnavailable`` where the outcome is unknown or the server is busy (429, 5xx, no answer); ``EngineError``
        where no other try helps: refused credentials, a missing index.
        """
        ...

    def read(self, index: str, ids: Collection[str]) -> dict[str, Found]:
        """The documents of these ids that the index holds, hidden ones among them; real-time. Raises as ``bulk``."""
        ...

    def documents(self, index: str, *, hidden: bool = False) -> Iterator[Found]:
        """The documents of an index, each once, as searches see them; with ``hidden``, those that are hidden too."""
        ...

"""The kinds of derivation, a room for each, in the order in which they finish after a commit."""

from collections.abc import Iterable

from streamfold.derivations.archive.kind import ARCHIVE
from streamfold.derivations.attributes.kind import ATTRIBUTES
from streamfold.derivations.audit.kind import AUDIT_ROWS
from streamfold.derivations.cascade.kind import CASCADE
from streamfold.derivations.copy.kind import COPY
from streamfold.derivations.derivation import Derivation
from streamfold.derivations.external.kind import EXTERNAL
from streamfold.derivations.feed.kind import FEED
from streamfold.derivations.index.kind import INDEX
from streamfold.derivations.on.kind import ON
from streamfold.derivations.publish.kind import PUBLISH
from streamfold.derivations.search.kind import SEARCH
from streamfold.derivations.timers.kind import TIMERS
from streamfold.derivations.view.kind import VIEW

KINDS: list[Derivation] = [
    VIEW,
    INDEX,
    ATTRIBUTES,
    TIMERS,
    AUDIT_ROWS,
    ON,
    COPY,
    EXTERNAL,
    PUBLISH,
    ARCHIVE,
    CASCADE,
    SEARCH,
    FEED,
]
COUNTED_WORDS = {word: message for kind in KINDS for word, message in kind.says.items()}
"""How the counts of all kinds are reported, by word."""


def kept_words(kind: str) -> tuple[str, ...]:
    """The words with which the keys of a kind's state items begin, beside the ledger."""
    return next((each.keeps for each in KINDS if each.name == kind), ())


def names_with(flag: str) -> str:
    *names, last = [kind.name for kind in KINDS if getattr(kind, flag)]
    return f"{', '.join(names)} or {last}"  # for texts


def in_order(kinds: Iterable[Derivation]) -> list[Derivation]:
    """Kinds in the order in which they finish; an unlisted kind comes last, by its name."""
    return sorted(kinds, key=lambda kind: (KINDS.index(kind) if kind in KINDS else len(KINDS), kind.name))

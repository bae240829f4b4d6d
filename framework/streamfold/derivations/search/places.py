"""Where documents go: to the index of the settings, in a local run to one that the local state holds."""

from streamfold.derivations.derivation import Finishing
from streamfold.derivations.search.declared import accepts_of
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.sink import Sink
from streamfold.engines import OwnStream

OPENED = "search"
"""The name under which a run keeps its index (``Run.opened``)."""


def sink_of(finishing: Finishing, *, asked_for: bool = False) -> Sink | None:
    """The index of a run; None if it makes no documents: on a real table, where effects outside are not wanted.

    ``asked_for``: documents are asked for, as a redrive or a repair does, so that the index of the settings is wanted.
    """
    run = finishing.run
    opened: Sink | None = run.opened.get(OPENED)
    if opened is not None:
        return opened
    if isinstance(finishing.store, OwnStream):
        return LocalIndex(finishing.engine, accepts_of(finishing.application.routes, run.settings))
    if not (run.outside or asked_for) or run.settings.search is None:
        return None
    from streamfold.derivations.search.connection import open_search

    run.opened[OPENED] = sink = open_search(run.settings)
    return sink

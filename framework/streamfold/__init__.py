"""Fold a DynamoDB stream into views, index items, histories, documents and feeds, exactly once.

Further public modules: ``streamfold.errors`` (every error that a caller may catch), ``streamfold.engines`` (stores),
``streamfold.read`` (derived rows as readers see them), ``streamfold.settings``, and for tests ``testing`` beside them
(``Twin``, ``check``).
"""

from typing import TYPE_CHECKING, Any

from streamfold.app import App
from streamfold.derivations.audit.options import AUDIT
from streamfold.derivations.search.options import Document
from streamfold.errors import StreamfoldError, Unprocessable
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.records.change import Change, Version
from streamfold.records.images import Item
from streamfold.records.values import divide, rounded
from streamfold.router import Router
from streamfold.routes.aggregates import Added, Ordered
from streamfold.routes.effects import Add, Delete, Put, Row
from streamfold.routes.lookups import Lookup
from streamfold.routes.parts import Every, Newest, Part, Parts
from streamfold.routes.shipped_aggregates import Average, Collect, Count, Distinct, First, Latest, Max, Min, Sum, Top

if TYPE_CHECKING:
    from streamfold.commit.outcome import Failure
    from streamfold.routes.local_days import local_day, local_day_bounds, local_month, local_week
    from streamfold.routes.moments import Now, Timer
    from streamfold.routes.typed import TypedChange

__all__ = [
    # what is declared
    "App", "Router", "Key", "Table",
    # what a handler gets
    "Change", "Item", "Part", "Parts", "Timer", "TypedChange", "Version",
    # what a handler returns or yields
    "Row", "Put", "Add", "Delete", "Document",
    # what a handler gets beside its item
    "Lookup", "Every", "Newest", "Now",
    # days of a time zone
    "local_day", "local_week", "local_month", "local_day_bounds",
    # what a row makes of its sources
    "Sum", "Count", "Average", "Min", "Max", "Latest", "First", "Distinct", "Collect", "Top",
    # what aggregates of one's own are derived from
    "Added", "Ordered",
    # how a handler rounds on purpose
    "divide", "rounded",
    # what a handler raises for a record that it will never process
    "Unprocessable",
    # what ``App.process`` returns
    "Failure",
    # the rest
    "AUDIT", "StreamfoldError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # These modules are imported where they are asked for: few cold starts need them.
    if name == "Failure":
        from streamfold.commit.outcome import Failure

        return Failure
    if name == "TypedChange":
        from streamfold.routes.typed import TypedChange

        return TypedChange
    if name in ("Now", "Timer"):
        from streamfold.routes import moments

        return getattr(moments, name)
    if name.startswith("local_") and name in __all__:
        from streamfold.routes import local_days

        return getattr(local_days, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

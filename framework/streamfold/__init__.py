"""Fold a DynamoDB stream into views, audit logs and index items, exactly once."""

from streamfold.app import App
from streamfold.derivations.audit.options import AUDIT
from streamfold.errors import StreamfoldError, Unprocessable
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.records.change import Change, Version
from streamfold.records.rounding import divide, rounded
from streamfold.records.values import Item
from streamfold.router import Router
from streamfold.routes.aggregates import Average, Count, Sum
from streamfold.routes.effects import Add, Delete, Put, Row
from streamfold.routes.ordered import Collect, Distinct, First, Latest, Max, Min, Top

__all__ = [
    # what is declared
    "App", "Router", "Key", "Table",
    # what a handler gets
    "Change", "Item", "Version",
    # what a handler yields
    "Row", "Put", "Add", "Delete",
    # what a row makes of its sources
    "Sum", "Count", "Average", "Min", "Max", "Latest", "First", "Distinct", "Collect", "Top",
    # how a handler rounds on purpose
    "divide", "rounded",
    # what a handler raises for a record that it will never process
    "Unprocessable",
    # the rest
    "AUDIT", "StreamfoldError",
]  # fmt: skip

"""Fold a DynamoDB stream into views, audit logs and index items, exactly once."""

from streamfold.aggregates import Average, Count, Sum
from streamfold.app import App
from streamfold.change import Change, Version
from streamfold.effects import Add, Delete, Put, Row
from streamfold.errors import StreamfoldError, Unprocessable
from streamfold.key import Key
from streamfold.ordered import Collect, Distinct, First, Latest, Max, Min, Top
from streamfold.recorded import AUDIT
from streamfold.rounding import divide, rounded
from streamfold.router import Router
from streamfold.table import Table
from streamfold.values import Item

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

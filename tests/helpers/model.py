"""Rows as tests compare them: what the package's oracle expects of records, and what an engine holds, both decoded."""

from streamfold.proofs.oracle import expected_rows, stored_rows
from streamfold.records.envelope import Origins
from streamfold.records.values import decode
from streamfold.settings import Settings


def model(app, records):
    """The rows that records have to lead to, as ``{(table, partition, sort): attributes}``."""
    origins = Origins(app.source_tables, Settings(), others=app.tables)
    return decoded(expected_rows(app, map(origins.change, records)))


def stored(app, engine):
    """The derived rows of an engine, as their readers see them, in the same form."""
    items = (pair for table in app.tables.values() for pair in keyed(table, engine.items(table)))
    return decoded(stored_rows(app, items))


def keyed(table, items):
    """Items of a table with their keys, as engines name them."""
    for item in items:
        partition, *sort = (decode(item[name]) for name in table.attributes)
        yield (table.name, partition, *(sort or [None])), item


def decoded(rows):
    """Rows as they compare: with plain values, because a number has several texts."""
    return {key: decode({"M": row}) for key, row in rows.items()}

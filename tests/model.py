"""Rows as tests compare them: what the package's oracle expects of records, and what an engine holds, both decoded."""

from streamfold.envelope import Origins
from streamfold.settings import Settings
from streamfold.testing.oracle import expected_rows, stored_rows
from streamfold.values import decode


def model(app, records):
    """The rows that records have to lead to, as ``{(table, partition, sort): attributes}``."""
    origins = Origins(app.source_tables, Settings(), others=app.tables)
    return _decoded(expected_rows(app, map(origins.change, records)))


def stored(app, engine):
    """The derived rows of an engine, as their readers see them, in the same form."""
    return _decoded(stored_rows(app, _items(app, engine)))


def _items(app, engine):
    for table in app.tables.values():
        for item in engine.items(table):
            partition, *sort = (decode(item[name]) for name in table.attributes)
            yield (table.name, partition, *(sort or [None])), item


def _decoded(rows):
    return {key: decode({"M": row}) for key, row in rows.items()}

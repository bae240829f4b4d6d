"""Stores whose rows and state are tables of their own, as on DynamoDB: a test loses, copies or misnames one of them."""

from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import NamedTable
from streamfold.keys.table import STATE, is_reserved
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings

TABLE, STATE_TABLE = NamedTable("orders", "t-1"), NamedTable("orders-state", "s-1")


class SeparateStore(MemoryEngine):
    """Dictionaries of rows and of state that have names. ``calls`` has the methods that were called, in order.

    dies_at: the number of the call at which the process dies; None: it lives.
    """

    def __init__(self, app, *, rows=None, state=None, named=None):
        super().__init__(app.tables.values())
        self.named = {name: TABLE._replace(name=f"{TABLE.name}-{name}") for name in app.tables}
        self.named |= {"main": TABLE, STATE.name: STATE_TABLE} | (named or {})
        self.calls, self.dies_at = [], None
        if rows is not None:
            self.rows, self._sources = rows.rows, rows._sources
        if state is not None:
            self.state, self._positions = state.state, state._positions

    def restored(self, app, **named):
        """A store of copies of both, under other names."""
        other = SeparateStore(app, named=named)
        other.rows = dict(self.rows)
        other.state = dict(self.state)
        other._positions = {pk: list(found) for pk, found in self._positions.items()}
        return other

    @property
    def derived(self):
        """The rows without markers."""
        return {key: row for key, row in self.rows.items() if not is_reserved(key[1])}

    def _counted(self, name):
        if self.dies_at is not None and len(self.calls) >= self.dies_at:
            raise Died
        self.calls.append(name)

    def transact(self, writes, expires_at):
        self._counted("transact")
        return super().transact(writes, expires_at)

    def read_rows(self, keys, *, consistent=True):
        self._counted("read_rows")
        return super().read_rows(keys, consistent=consistent)

    def read_state(self, keys, *, consistent=False):
        self._counted("read_state")
        return super().read_state(keys, consistent=consistent)

    def swap_state(self, key, attributes, revision):
        self._counted("swap_state")
        return super().swap_state(key, attributes, revision)


class Died(BaseException):
    """The process ends in the middle of a call."""


def process(app, store, *, known=None, **settings):
    """A process of its own on a store."""
    given = Settings(**{"tables": {"main": store.real_name("main")}, **settings})
    return Runtime(app, store, given, known or Knowledge(), pause=lambda _: None)

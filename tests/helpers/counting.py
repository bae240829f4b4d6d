"""A counting engine that keeps the writes of its transactions, for tests that look at them."""

from streamfold.engines.capacity import CountingEngine


class KeepingEngine(CountingEngine):
    """Counts, and keeps what it was asked to write."""

    def __init__(self, engine):
        super().__init__(engine)
        self.writes = []

    def transact(self, writes, expires_at):
        self.writes += writes
        return super().transact(writes, expires_at)

"""The shards that a mapping reads: which of them may be read now, and from where on."""

from collections import Counter
from collections.abc import Iterator

from streamfold.testing.errors import TwinError
from streamfold.testing.filters import Filters
from streamfold.testing.kinesis import KinesisTwin
from streamfold.testing.lanes import Reader, StreamLane
from streamfold.testing.stream import StreamTwin


class Polling:
    """Readers of all shards of a stream, each with ``lanes`` of its own."""

    def __init__(self, stream: StreamTwin | KinesisTwin, lanes: int, filters: Filters) -> None:
        self.stream = stream
        self._lanes = lanes
        self._filters = filters
        self._readers: dict[str, Reader] = {}
        self.find_shards()

    def find_shards(self) -> None:
        """Takes in the shards that the stream has by now."""
        for shard in self.stream.shards:
            if shard.id not in self._readers:
                self._readers[shard.id] = Reader(shard, self._lanes)

    def poll(self, now: float, metrics: Counter[str]) -> int:
        """Reads every shard that may be read; returns how many records had expired before."""
        self.find_shards()
        expired = 0
        for reader in self._readers.values():
            if self._readable(reader):  # which a parent may make its children, as soon as it is read itself
                expired += reader.poll(self._filters, now, metrics)
        return expired

    @property
    def lanes(self) -> Iterator[StreamLane]:
        """The lanes of all shards."""
        return (lane for reader in self._readers.values() for lane in reader.lanes)

    @property
    def caught_up(self) -> bool:
        """Whether every record that the stream holds is through."""
        self.find_shards()
        return all(reader.at_end and not reader.busy for reader in self._readers.values())

    def skip(self) -> None:
        """Passes over what the stream holds."""
        for reader in self._readers.values():
            reader.skip()

    def rewind(self, shard_id: str | None, sequence: int) -> None:
        """Goes back to a sequence number in one shard, or in all. Raises ``TwinError`` for an unknown shard."""
        if shard_id is not None and shard_id not in self._readers:
            raise TwinError(f"Shard {shard_id!r} is not read: expected one of {', '.join(self._readers) or 'none'}.")
        for reader in self._readers.values():
            if shard_id in (None, reader.shard.id):
                reader.go_back(sequence)

    def go_back(self) -> None:
        """Goes back to the checkpoint of each shard. It has one: what other lanes finished beyond it comes again."""
        for reader in self._readers.values():
            reader.go_back(reader.checkpoint())

    def _readable(self, reader: Reader) -> bool:
        """A shard is read when its parent is through, or was trimmed (Developer Guide, Streams)."""
        parent = self._readers.get(reader.shard.parent or "")
        return parent is None or (self._readable(parent) and parent.drained)

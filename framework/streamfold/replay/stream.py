"""Reads what a table's DynamoDB stream holds, in pages.

Every page comes with the cursor behind it, so that reading resumes exactly after the last page that was kept.
"""

import threading
from collections.abc import Iterator

from botocore.exceptions import ClientError

from streamfold.errors import StreamfoldError
from streamfold.replay.shards import NOT_FOUND, Client, ShardCursor, ShardPage, ShardWalk, error_code

PAUSE_SECONDS = 1.0
"""Rest between two rounds over drained shards. DescribeStream allows 10 calls a second (API Reference)."""


class StreamError(StreamfoldError):
    """Raised when a table has no stream to read, or a cursor or recording does not belong to that stream."""


class StreamReader:
    """Reads a table's stream: parents before children, each record of the stream once per cursor.

    ``dynamodb`` and ``dynamodbstreams`` are low-level boto3 clients of one account and region. ``trimmed_shards`` lists
    the shards of which records were gone before they could be read: a stream keeps them for 24 hours.
    """

    def __init__(
        self, dynamodb: Client, dynamodbstreams: Client, table: str, *, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self.table = table
        self.trimmed_shards: list[str] = []
        self._dynamodb = dynamodb
        self._streams = dynamodbstreams
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends a reading that follows the stream, after the page in hand. May be called from another thread."""
        self._stopped.set()

    def stream_arn(self) -> str:
        """The ARN of the table's latest stream, which stays readable for 24 hours after it was switched off.

        Raises StreamError when there is no such table, or it never had a stream.
        """
        try:
            table = self._dynamodb.describe_table(TableName=self.table)["Table"]
        except ClientError as error:
            if error_code(error) != NOT_FOUND:
                raise
            raise StreamError(
                f"Table {self.table!r} does not exist in region {self._dynamodb.meta.region_name} at "
                f"{self._dynamodb.meta.endpoint_url}. Check the name, the region, the endpoint and the credentials."
            ) from error
        if "LatestStreamArn" not in table:
            raise StreamError(
                f"Table {self.table!r} has no stream: expected one with both images. Switch it on, for the changes "
                f"from then on: aws dynamodb update-table --table-name {self.table} "
                "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES"
            )
        return str(table["LatestStreamArn"])

    def pages(self, cursor: ShardCursor | None = None, *, follow: bool = False) -> Iterator[ShardPage]:
        """Yields what the stream holds behind ``cursor`` (None: all of it), page by page.

        Ends when every shard is drained. With ``follow`` it goes on until ``stop`` is called or the stream has been
        switched off and read to its end. Raises StreamError, at once, when the cursor is one of another stream.
        """
        return self._walk(ShardWalk(self._streams, self._same_stream(cursor), self.trimmed_shards), follow=follow)

    def _walk(self, walk: ShardWalk, *, follow: bool) -> Iterator[ShardPage]:
        while not self._stopped.is_set():
            for page in walk.round():
                yield page
                if self._stopped.is_set():
                    return
            if walk.has_unread():
                continue
            if not follow or walk.is_over():
                return
            self._stopped.wait(self._pause_seconds)
            walk.look_again()

    def _same_stream(self, cursor: ShardCursor | None) -> ShardCursor:
        arn = self.stream_arn()
        if cursor is None:
            return {"stream_arn": arn, "shards": {}}
        if cursor["stream_arn"] != arn:
            raise StreamError(
                f"The cursor belongs to stream {cursor['stream_arn']}, but the stream of table {self.table!r} is now "
                f"{arn}: it was switched off and on, or the table was made anew. Start a new recording, "
                "in another file and without that cursor; what the old stream held behind the cursor is not in it."
            )
        return cursor

"""Where archives are kept: a prefix in an S3 bucket, or a folder for local replays and tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from streamfold.errors import EngineError, EngineUnavailable, SettingsError, redacted, refusal
from streamfold.parking import Clients, make_client, s3_location

FOLDER = "file:"
BUCKET = "s3://"
EXPECTED = f"expected {BUCKET}BUCKET/PREFIX, or locally {FOLDER}FOLDER"
FOR_GOOD = ("AccessDenied", "AllAccessDisabled", "NoSuchBucket")
"""Codes of S3 for a call that will never succeed (S3 API Reference, ErrorResponses)."""
NOT_ARCHIVED = "not_archived"
"""Counts items that were not written, because no location was open to the run."""


def is_location(text: object) -> bool:
    if not isinstance(text, str):
        return False
    if text.startswith(BUCKET):
        return bool(text.removeprefix(BUCKET).partition("/")[0])
    return text.startswith(FOLDER) and text != FOLDER


class ArchiveLocation(Protocol):
    """A location of named contents; the names are paths with ``/``."""

    def write(self, name: str, content: bytes) -> None:
        """Writes a content, over one of the same name.

        Raises ``EngineUnavailable`` unless the content is stored, ``EngineError`` if it never will be.
        """
        ...

    def names(self, under: str) -> Iterator[str]:
        """The names that begin with ``under``, in their order."""
        ...

    def folders(self, under: str) -> Iterator[str]:
        """The next folders of the names that begin with ``under``, in their order."""
        ...

    def read(self, name: str) -> IO[bytes]:
        """A content as a stream."""
        ...


class Folder:
    """A folder; for local replays and tests."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def write(self, name: str, content: bytes) -> None:
        file = self.path / name
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        # A reader must never see half a file: it is written under another name, and then renamed.
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            beside.replace(file)
        except OSError as error:
            raise EngineUnavailable(f"File {file} cannot be written: {error.strerror or error}.") from error

    def names(self, under: str) -> Iterator[str]:
        found = (path for path in self.path.glob(f"{under}**/*") if path.is_file() and not path.name.startswith("."))
        yield from sorted(path.relative_to(self.path).as_posix() for path in found)

    def folders(self, under: str) -> Iterator[str]:
        yield from sorted(path.name for path in (self.path / under).glob("*") if path.is_dir())

    def read(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")

    def __str__(self) -> str:
        return f"{FOLDER}{self.path}"


class Bucket:
    """A prefix in an S3 bucket."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = prefix

    def write(self, name: str, content: bytes) -> None:
        with self._explained("s3:PutObject"):
            self.client.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=content)

    def names(self, under: str) -> Iterator[str]:
        for page in self._pages(under):
            yield from (entry["Key"].removeprefix(self.prefix) for entry in page.get("Contents", ()))

    def folders(self, under: str) -> Iterator[str]:
        for page in self._pages(under, Delimiter="/"):
            yield from (entry["Prefix"].rstrip("/").rpartition("/")[2] for entry in page.get("CommonPrefixes", ()))

    def read(self, name: str) -> IO[bytes]:
        with self._explained("s3:GetObject"):
            stream: IO[bytes] = self.client.get_object(Bucket=self.bucket, Key=self.prefix + name)["Body"]
            return stream

    def _pages(self, under: str, **more: str) -> Iterator[Any]:
        with self._explained("s3:ListBucket"):
            pages = self.client.get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self.bucket, Prefix=self.prefix + under, **more)

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            what = f"{self} refused a call with {refusal(error)}."
            if error.response["Error"]["Code"] in FOR_GOOD:
                raise EngineError(f"{what} The bucket has to exist, and {action} on it to be permitted.") from error
            raise EngineUnavailable(what) from error
        except BotoCoreError as error:
            raise EngineUnavailable(f"{self} could not be reached ({redacted(error)}).") from error

    def __str__(self) -> str:
        return f"{BUCKET}{self.bucket}/{self.prefix}"


def open_location(text: str, clients: Clients = make_client) -> ArchiveLocation:
    """The location of a setting or a declaration. Raises ``SettingsError`` if the text names none."""
    if not is_location(text):
        raise SettingsError(f"The archive {text!r} is no known location: {EXPECTED}.")
    if text.startswith(BUCKET):
        return Bucket(clients("s3"), *s3_location(text))
    return Folder(text.removeprefix(FOLDER))

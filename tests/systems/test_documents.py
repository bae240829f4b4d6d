"""Documents: every revision that was ever written, what each folder holds, and a history of every change."""

from collections import Counter, defaultdict

import pytest

from handlers.documents import DOCUMENT, DOCUMENT_LATEST, DOCUMENT_VERSION, FOLDER, IN_FOLDER
from streamfold import AUDIT
from tests.systems import Replayed


@pytest.fixture(scope="module")
def shelf():
    return Replayed("documents")


def without_token(document):
    return {name: value for name, value in document.items() if name != "share_token"}


def test_every_revision_is_kept_as_it_was_written_last(shelf):
    written = {}
    for (name,), images in shelf.images(DOCUMENT).items():
        written |= {(name, image["revision"]): image for image in images if image}
    kept = shelf.rows(DOCUMENT_VERSION)
    assert {fields: row["image"] for fields, row in kept.items()} == {
        fields: without_token(image) for fields, image in written.items()
    }
    shared = {fields for fields, image in written.items() if "share_token" in image}
    assert shared
    assert {fields for fields, row in kept.items() if "redacted" in row} == shared


def test_the_latest_revision_of_a_document_that_is_there_is_named(shelf):
    kept, named = shelf.rows(DOCUMENT_VERSION), shelf.rows(DOCUMENT_LATEST)
    documents = shelf.items(DOCUMENT)
    assert {fields: row["revision"] for fields, row in named.items()} == {
        fields: document["revision"] for fields, document in documents.items()
    }
    for fields, row in named.items():
        assert kept[tuple(DOCUMENT_VERSION.match(row["key"]).values())]["image"] == without_token(documents[fields])


def test_a_folder_is_as_large_as_its_documents(shelf):
    sizes, counts = Counter(), Counter()
    for document in shelf.items(DOCUMENT).values():
        sizes[document["folder"]] += len(document["text"])
        counts[document["folder"]] += 1
    expected = {(folder,): {"characters": sizes[folder], "documents": counts[folder]} for folder in counts}
    assert shelf.rows(FOLDER) == expected


def test_a_folder_lists_its_documents(shelf):
    listed = defaultdict(set)
    for folder, name in shelf.rows(IN_FOLDER):
        listed[folder].add(name)
    held = defaultdict(set)
    for (name,), document in shelf.items(DOCUMENT).items():
        held[document["folder"]].add(name)
    assert listed == held


def test_the_history_has_a_row_for_every_change_and_no_token(shelf):
    changes = Counter(f"DOC#{name}|METADATA" for (name,), images in shelf.images(DOCUMENT).items() for _ in images)
    history = shelf.rows(AUDIT)
    assert Counter(item for item, _ in history) == changes
    tokens = [row["changes"]["share_token"] for row in history.values() if "share_token" in row["changes"]]
    assert tokens
    assert all(token.keys() == {"redacted"} for token in tokens)

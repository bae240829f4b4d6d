"""Documents: every revision that was ever written, what each folder holds, and a history of every change."""

from collections import Counter, defaultdict

import pytest

from handlers.documents import DOCUMENT, DOCUMENT_VERSION, FOLDER, IN_FOLDER
from streamfold import AUDIT
from tests.systems import Replayed


@pytest.fixture(scope="module")
def shelf():
    return Replayed("documents")


def test_every_revision_is_kept_as_it_was_written_last(shelf):
    texts = {}
    for (name,), images in shelf.images(DOCUMENT).items():
        texts |= {(name, image["revision"]): image["text"] for image in images if image}
    assert {fields: row["text"] for fields, row in shelf.rows(DOCUMENT_VERSION).items()} == texts


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

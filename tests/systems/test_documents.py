"""Documents: every revision that was ever written, what each folder holds and lies in, and the history of changes."""

from collections import Counter, defaultdict

import pytest

from handlers import documents
from handlers.documents import DOCUMENT, DOCUMENT_LATEST, DOCUMENT_VERSION, FOLDER, FOLDER_SIZE, IN_FOLDER
from streamfold import AUDIT, App
from streamfold.testing import Twin
from tests.systems import BATCHES, Replayed, without_key


@pytest.fixture(scope="module", params=BATCHES)
def shelf(request):
    return Replayed("documents", batch_records=request.param)


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
    assert shelf.rows(FOLDER_SIZE) == expected


def test_a_folder_lists_its_documents(shelf):
    listed = defaultdict(set)
    for folder, name in shelf.rows(IN_FOLDER):
        listed[folder].add(name)
    held = defaultdict(set)
    for (name,), document in shelf.items(DOCUMENT).items():
        held[document["folder"]].add(name)
    assert listed == held


def test_a_folder_shows_the_name_that_its_parent_has(shelf):
    folders = shelf.items(FOLDER)
    names = {name: folder["name"] for (name,), folder in folders.items()}
    expected = {
        fields: without_key(FOLDER, folder)
        | ({"parent_name": names[folder["parent"]]} if folder.get("parent") in names else {})
        for fields, folder in folders.items()
    }
    assert len({"parent_name" in folder for folder in expected.values()}) == 2
    assert shelf.rows(FOLDER) == expected


def test_the_recording_has_what_makes_trees_hard(shelf):
    folders, made = shelf.images(FOLDER), shelf.first_records(FOLDER)
    parents = {name: [image.get("parent") for image in images if image] for (name,), images in folders.items()}
    assert any(None in images[:-1] for images in folders.values()), "no folder is made again"
    assert any(len(set(seen)) > 2 for seen in parents.values()), "no folder moves"
    assert any(name in seen for name, seen in parents.items()), "no folder lies in itself"
    assert any(made[(name,)] < made[(seen[0],)] for name, seen in parents.items() if seen[0] in parents)


def test_the_history_has_a_row_for_every_change_and_no_token(shelf):
    changes = Counter(f"DOC#{name}|METADATA" for (name,), images in shelf.images(DOCUMENT).items() for _ in images)
    history = shelf.rows(AUDIT)
    assert Counter(item for item, _ in history) == changes
    tokens = [row["changes"]["share_token"] for row in history.values() if "share_token" in row["changes"]]
    assert tokens
    assert all(token.keys() == {"redacted"} for token in tokens)


def test_folders_in_a_circle_each_show_the_name_of_the_other():
    twin = Twin(App("documents", routers=[documents]))
    for folder, parent in (("a", "b"), ("b", "a"), ("c", "c")):
        twin.put(FOLDER, folder=folder, name=folder.upper(), parent=parent)
    twin.put(FOLDER, folder="b", name="Plans", parent="a")
    assert [twin.row(FOLDER, folder=folder)["parent_name"] for folder in "abc"] == ["Plans", "A", "C"]

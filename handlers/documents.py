"""Documents: every version kept by its number, every change in a history, and the size of each folder. Folders are in
folders, and show the name that their parent has.

The writer raises ``revision`` with each edit, on the condition that nobody else did; the stream keeps the rest.
"""

from streamfold import Count, Item, Key, Lookup, Router, Row, Sum

DOCUMENT = Key("DOC#{document_id}", "METADATA")
DOCUMENT_VERSION = Key("DOC#{document_id}", "V#{revision:04d}")
DOCUMENT_LATEST = Key("DOC#{document_id}", "LATEST")
FOLDER = Key("FOLDER#{folder}", "METADATA")
FOLDER_SIZE = Key("FOLDER#{folder}", "SIZE")
IN_FOLDER = Key("FOLDER#{folder}", "DOC#{document_id}")

router = Router()
router.audit(
    DOCUMENT, versions=DOCUMENT_VERSION, latest=DOCUMENT_LATEST, redact=["share_token"], name="document_history"
)


@router.view(DOCUMENT, into=FOLDER_SIZE)
def folder_size(document: Item) -> Row:
    return Row(folder=document["folder"], characters=Sum(len(document["text"])), documents=Count())


@router.index(DOCUMENT, into=IN_FOLDER)
def documents_in_folder(document: Item) -> Row:
    return Row(folder=document["folder"], title=document["title"], revision=document["revision"])


@router.attributes(FOLDER, lookup={"parent": Lookup(FOLDER, folder="parent", reads=["name"])})  # a tree
def parent_of_folder(folder: Item, parent: Item) -> Row:
    return Row(parent_name=parent["name"])

"""Documents: every version kept by its number, every change in a history, and the size of each folder. Folders are in
folders, and show the name that their parent has.

The writer raises ``revision`` with each edit, on the condition that nobody else did; the stream keeps the rest.

Documents with the names of their labels are an application of their own:
``streamfold replay events/documents/labels.jsonl --app handlers.documents:app`` runs it.
"""

from collections.abc import Iterator

from streamfold import App, Count, Item, Key, Lookup, Router, Row, Sum

DOCUMENT = Key("DOC#{document_id}", "METADATA")
DOCUMENT_VERSION = Key("DOC#{document_id}", "V#{revision:04d}")
DOCUMENT_LATEST = Key("DOC#{document_id}", "LATEST")
LABEL = Key("LABEL#{label}", "METADATA")
LABELLED = Key("LABELLED#{name}", "DOCUMENTS")
FOLDER = Key("FOLDER#{folder}", "METADATA")
FOLDER_SIZE = Key("FOLDER#{folder}", "SIZE")
IN_FOLDER = Key("FOLDER#{folder}", "DOC#{document_id}")
LABELS = {"labels": Lookup(LABEL, label="labels", many=True, reads=["name"])}  # a document has a list of their ids

router, labelled = Router(), Router()
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


@labelled.attributes(DOCUMENT, lookup=LABELS)
def labels_of_document(document: Item, labels: tuple[Item, ...]) -> Row | None:
    return Row(label_names=[label["name"] for label in labels]) if labels else None


@labelled.view(DOCUMENT, into=LABELLED, lookup=LABELS)
def documents_by_label(document: Item, labels: tuple[Item, ...]) -> Iterator[Row]:
    for name in {label["name"] for label in labels}:  # two labels may have one name
        yield Row(name=name, documents=Count(), characters=Sum(len(document["text"])))


app = App("labels", routers=[labelled])
lambda_handler = app.lambda_handler
jobs_handler = app.jobs_handler
verify_handler = app.verify_handler

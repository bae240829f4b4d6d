"""Changes that leave their documents as they were (``skip_equal``)."""

from streamfold.derivations.search.document import Parts
from streamfold.derivations.search.encoded import document_text
from streamfold.derivations.search.gather import Gathered, Root
from streamfold.derivations.search.make import documents_of
from streamfold.derivations.search.options import options_of
from streamfold.records.change import Change
from streamfold.records.images import Image


def changes_nothing(root: Root) -> bool:
    """Whether each change of a root leads from documents to equal ones.

    Every change is asked, not the first and the last: of changes that lead there and back, one may have been indexed
    alone. A part, an image that is not known, or a handler that raises is no reason to skip.
    """
    if options_of(root.route).parts:
        return False
    return all(_is_equal(root, change) for change in root.changes)


def _is_equal(root: Root, change: Change) -> bool:
    if not (change.item == root.item and change.has_old and change.has_new):
        return False
    try:
        return _documents(root, change.old) == _documents(root, change.new)
    except Exception:  # noqa: BLE001 - the run itself says what is wrong
        return False


def _documents(root: Root, image: Image) -> list[bytes]:
    """The documents as they would be sent: Python takes a ``True`` for a 1, and an index does not."""
    if not image:
        return []
    return [
        document_text(document.fields) for document in documents_of(root.route, Gathered(image, Parts()), root.fields)
    ]

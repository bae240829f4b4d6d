"""The documents that an item's newest image gives, before anything is written."""

from decimal import localcontext

from streamfold.derivations.derivation import Preview
from streamfold.derivations.search.document import Parts
from streamfold.derivations.search.encoded import own_fields, parsed
from streamfold.derivations.search.gather import Gathered, Root
from streamfold.derivations.search.make import made, only_id
from streamfold.derivations.search.options import keeps_ids, options_of
from streamfold.errors import is_fatal, reason
from streamfold.records.images import Image
from streamfold.records.numbers import EXACT
from streamfold.settings import Settings


def previewed(root: Root, settings: Settings) -> list[Preview]:
    """What a run would send for an item; documents that are made of parts, or of an unknown image, are only named."""
    newest = max(root.changes, key=lambda change: change.version_text)
    if options_of(root.route).parts or newest.item != root.item or not newest.has_new:
        return [Preview(str(root))]
    try:
        with localcontext(EXACT):
            return _documents(root, newest.new, settings)
    except Exception as error:
        if is_fatal(error):
            raise
        return [Preview(f"{root}, which fails: {type(error).__name__}: {reason(error)}")]


def _documents(root: Root, image: Image, settings: Settings) -> list[Preview]:
    name = root.route.name
    found = made(root, Gathered(image, Parts()), settings)
    sent = [
        Preview(f"{name}: document {own} of index {found.alias}", own_fields(parsed(body)))
        for own, body in found.bodies.items()
    ]
    if sent:
        return sent
    gone = "hide" if options_of(root.route).deletes == "kept" else "delete"
    if keeps_ids(root.route):
        return [Preview(f"{name}: {gone} all documents of {root.place} of index {found.alias}")]
    own = only_id(root.route, root.item, root.fields)
    return [Preview(f"{name}: {gone} document {own} of index {found.alias}")]

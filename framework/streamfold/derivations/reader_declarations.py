"""Declarations of what readers are shown elsewhere than in rows of a view: documents of a search index, and feeds."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack

from streamfold.derivations.decorators import Declarations, check_call
from streamfold.derivations.feed.kind import FEED
from streamfold.derivations.feed.options import FEED_ATTRIBUTE, INLINE, MOST, FeedOptions, Unfollow, checked_feed
from streamfold.derivations.search.document import Document
from streamfold.derivations.search.kind import SEARCH
from streamfold.derivations.search.mapping import FieldTypes
from streamfold.derivations.search.options import Deletes, IndexOptions, SearchOptions, checked_search
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.routes.declaration import CommonOptions, Keys, target_keys
from streamfold.routes.effects import Row

DocumentsHandler = TypeVar("DocumentsHandler", bound=Callable[..., Document | Iterable[Document] | None])
"""A handler of a search: it returns a document, several or none, or yields them."""
FeedHandler = TypeVar("FeedHandler", bound=Callable[..., Row | Iterable[Row] | None])
"""A handler of a feed: it gets a post and an edge, and returns a row or None, or yields one."""


class ReaderDeclarations(Declarations):
    """The part of a ``Router`` that declares search documents and feeds."""

    def search(  # noqa: PLR0913 - one call says it all, by name
        self,
        *sources: Key,
        to: str,
        parts: Sequence[Key] = (),
        id: str | None = None,  # noqa: A002 - the word of the index
        mapping: str | None = None,
        fields: FieldTypes | None = None,
        settings: str | None = None,
        deletes: Deletes = "kept",
        skip_equal: bool = False,
        replaces: str | None = None,
        **common: Unpack[CommonOptions],
    ) -> Callable[[DocumentsHandler], DocumentsHandler]:
        """Declares documents of a search index, which are never older than their items.

        The function gets an item and returns the ``Document`` that stands for it, a list of them, or None; or it yields
        them. ``to`` is the logical name of the index, or a template of fields of the source's key. ``parts`` names keys
        of the same partition, rows of views among them: the function gets them as its second parameter, ``Parts``.
        ``id`` is a template that holds every field of the source's key, and for several documents of an item a field
        of theirs; without it the id is the item's key. ``mapping`` is a JSON file beside this one, or ``fields`` gives
        types by name; nothing else is indexed unless the mapping says so. ``settings`` is a JSON file of the index's
        settings. ``deletes="removed"`` deletes documents instead of hiding them. ``skip_equal=True`` sends nothing for
        a change that leaves the document as it was. ``replaces`` names the search whose index this one is to take
        over. See docs/search.md.
        """
        check_call(self, "search", sources)

        def made(keys: Keys, at: str) -> tuple[Keys, SearchOptions]:
            given = IndexOptions(mapping, fields, settings, deletes, skip_equal, replaces)
            return (), checked_search(keys, at, to, parts, id, given)

        return self._decorator("search", SEARCH, sources, common, made)

    def feed(
        self,
        post: Key,
        /,
        *,
        audience: Key,
        into: Key,
        keep_days: int,
        most: int = MOST,
        pull_above: int | None = None,
        unfollow: Unfollow = "remove",
        inline: int = INLINE,
        **common: Unpack[CommonOptions],
    ) -> Callable[[FeedHandler], FeedHandler]:
        """Declares a feed: every post of an author in the feed of each who follows him, newest first.

        The function gets a post and an edge, the item that says who follows whom, and returns one ``Row``, or None
        where the reader is not to see the post. ``audience`` is the key of the edges; the fields that both keys share
        join them. ``into`` holds every field of both keys. The sort key of ``post`` begins with a typed time, which
        orders the feed. A feed shows posts of the last ``keep_days``; a follow copies the ``most`` newest of them. Of
        authors with more than ``pull_above`` followers posts are not written into feeds, but read with them
        (``read.feed``). ``unfollow="keep"`` leaves what a feed has got. ``inline`` is how many rows a change writes
        before its record is acknowledged; more go on by ``app.jobs_handler``. See docs/feeds.md.
        """
        check_call(self, "feed", (post,))
        if not isinstance(post, Key):
            raise DeclarationError(f"feed({post!r}, ...): expected the Key of the posts, feed(POST, audience=FOLLOW).")
        if not isinstance(audience, Key):
            raise DeclarationError(f"feed(..., audience={audience!r}): expected the Key of the edges, audience=FOLLOW.")

        limits: dict[str, Any] = {"keep_days": keep_days, "most": most, "pull_above": pull_above, "inline": inline}

        def made(_: Keys, at: str) -> tuple[Keys, FeedOptions]:
            (target,) = target_keys(into, at)
            return (target,), checked_feed(post, audience, target, at, unfollow=unfollow, **limits)

        declare = self._decorator("feed", FEED, (post, audience), common, made)

        def declared(handler: FeedHandler) -> FeedHandler:
            declare(handler)
            setattr(handler, FEED_ATTRIBUTE, self.routes[-1])
            return handler

        return declared

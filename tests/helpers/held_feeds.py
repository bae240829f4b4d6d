"""What a reader of a feed has to be shown, folded from writes alone: it shares no code with the feed.

Every post that is shown is there, of an edge that is there, and no older than ``keep_days``. None of these is missing
but posts behind an author's newest ``most`` when the reader began to follow.
"""

from collections import defaultdict

from streamfold.read.feeds import EngineQueries, page

SECONDS_A_DAY = 86_400
PAGES_MAX = 500


class HeldFeeds:
    """The posts and edges of one feed as they were written, one write after another."""

    def __init__(self, show, keep_days, most):
        self.show = show  # what is shown of a post and an edge; None: nothing
        self.keep_seconds = keep_days * SECONDS_A_DAY
        self.most = most
        self.posts = defaultdict(dict)  # by author, by time and name
        self.edges = defaultdict(dict)  # by reader, by author
        self.behind = set()  # reader, author, post: what a follow need not copy

    def post(self, author, at, name, item):
        """A post is written, or removed where the item is None."""
        if item is None:
            self.posts[author].pop((at, name), None)
        else:
            self.posts[author][at, name] = item

    def edge(self, reader, author, item, now):
        """A reader follows, changes how, or stops where the item is None."""
        if item is None:
            self.edges[reader].pop(author, None)
        else:
            if author not in self.edges[reader]:
                self._begin(reader, author, now)
            self.edges[reader][author] = item

    def _begin(self, reader, author, now):
        young = sorted(place for place in self.posts[author] if place[0] >= now - self.keep_seconds)
        self.behind = {each for each in self.behind if each[:2] != (reader, author)}
        self.behind |= {(reader, author, place) for place in young[: max(0, len(young) - self.most)]}

    def shown(self, reader, now):
        """All that a reader may be shown, newest first, as (time, author, name, what is shown)."""
        found = [
            (at, author, name, text)
            for author, edge in self.edges[reader].items()
            for (at, name), post in self.posts[author].items()
            if at >= now - self.keep_seconds and (text := self.show(post, edge)) is not None
        ]
        return sorted(found, key=lambda each: each[:3], reverse=True)

    def check(self, reader, given, now):
        """Compares what a reader was given, in its order, with what he has to be shown."""
        allowed = self.shown(reader, now)
        assert [each for each in given if each not in allowed] == [], f"{reader} is shown what is not there"
        missing = [each for each in allowed if each not in given]
        unexplained = [each for each in missing if (reader, each[1], (each[0], each[2])) not in self.behind]
        assert unexplained == [], f"{reader} misses posts"
        assert given == [each for each in allowed if each in given], f"{reader} reads in another order"


def read_all(route, engine, reader, now, limit=3):
    """All rows of a reader's feed, read page by page."""
    rows, cursor = [], None
    for _ in range(PAGES_MAX):
        got = page(route, EngineQueries(engine), reader, limit, cursor, 50, now)
        assert not got.partial
        assert len(got.rows) <= limit
        rows += got.rows
        cursor = got.cursor
        if cursor is None:
            return rows
    raise AssertionError(f"the feed of {reader} has no end")

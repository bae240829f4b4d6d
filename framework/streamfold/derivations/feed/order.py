"""Where the posts of a time lie: their sort keys begin with it."""

from datetime import UTC, datetime

from streamfold.derivations.feed.options import options_of
from streamfold.keys.field import ulid_of
from streamfold.routes.route import Route


def place_from(route: Route, seconds: float) -> str:
    """A place that no post of this time, or of a later one, lies before."""
    order = options_of(route).order
    post = route.sources[0]
    assert post.sort is not None
    before = ""
    for piece in post.sort.pieces:
        if not isinstance(piece, str):
            break
        before += piece
    moment = datetime.fromtimestamp(max(int(seconds), 0), UTC)
    if order.spec == "ulid":
        return before + ulid_of(max(int(seconds), 0) * 1000)
    return before + str(order.write(moment.date() if order.spec == "date" else moment))

"""Games: every player's best score in a game and in each week of it, and leaderboards over these bests.

A score that is struck off or corrected leaves the player with the next best one, and the leaderboards follow.
"""

from collections.abc import Iterator
from datetime import datetime

from streamfold import Count, Item, Key, Max, Router, Row, Top

SCORE = Key("GAME#{game}", "SCORE#{player}#{at:datetime.seconds}")
BEST = Key("PLAYER#{player}", "BEST#{game}")
WEEK_BEST = Key("PLAYER#{player}", "WEEK#{week}#{game}")
LEADERBOARD = Key("LEADERBOARD#{game}", "ALL")
WEEK_LEADERBOARD = Key("LEADERBOARD#{game}", "WEEK#{week}")

PLACES = 10

router = Router()


@router.view(SCORE, into=[BEST, WEEK_BEST])
def bests(score: Item, at: datetime) -> Iterator[Row]:
    yield Row(BEST, best=Max(score["points"]), last_at=Max(at), scores=Count())
    yield Row(WEEK_BEST, week=f"{at:%G-W%V}", best=Max(score["points"]), scores=Count())


@router.view(BEST, into=LEADERBOARD)  # a chain: of every player one row counts, the best that bests keeps
def leaderboard(row: Item, player: str) -> Row | None:
    return place_of(row, player)


@router.view(WEEK_BEST, into=WEEK_LEADERBOARD)
def week_leaderboard(row: Item, player: str) -> Row | None:
    return place_of(row, player)


def place_of(row: Item, player: str) -> Row | None:
    """What a player's best is worth on a leaderboard."""
    if "best" in row:  # a greatest value is written right behind the row that it stands in
        place = {"player": player, "points": row["best"]}
        return Row(top=Top(PLACES, place, by=row["best"], ties="largest key"), players=Count())
    return None

"""Games: bests and leaderboards from the scores that are there at the end, sorted."""

from collections import defaultdict

import pytest

from handlers.gaming import BEST, LEADERBOARD, SCORE, WEEK_BEST, WEEK_LEADERBOARD
from tests.systems import Replayed


@pytest.fixture(scope="module")
def arcade():
    return Replayed("gaming")


def bests(arcade, board_of):
    """The best points of every player on every board."""
    found = defaultdict(dict)
    for (game, player, at), score in arcade.items(SCORE).items():
        board = found[board_of(game, at)]
        board[player] = max(board.get(player, 0), score["points"])
    return found


def by_game(game, _):
    return (game, "ALL")


def by_week(game, at):
    year, week, _ = at.isocalendar()
    return (game, f"{year}-W{week:02d}")


def first_ten(board):
    """The ten best of a board, of equal ones the player whose name is the greater."""
    ranked = sorted(((points, player) for player, points in board.items()), reverse=True)
    return [{"player": player, "points": points} for points, player in ranked[:10]]


@pytest.mark.parametrize(("key", "board_of"), [(BEST, by_game), (WEEK_BEST, by_week)])
def test_a_best_is_the_greatest_score_that_was_left_standing(arcade, key, board_of):
    expected = {}
    for (game, week), board in bests(arcade, board_of).items():
        for player, points in board.items():
            expected[(player, game) if week == "ALL" else (player, week, game)] = points
    assert {fields: row["best"] for fields, row in arcade.rows(key).items()} == expected


@pytest.mark.parametrize(("key", "board_of"), [(LEADERBOARD, by_game), (WEEK_LEADERBOARD, by_week)])
def test_a_leaderboard_is_the_ten_best_of_its_players(arcade, key, board_of):
    boards = bests(arcade, board_of)
    assert any(len(board) > 10 for board in boards.values())
    expected = {
        fields[: len(key.fields)]: {"top": first_ten(board), "players": len(board)} for fields, board in boards.items()
    }
    assert arcade.rows(key) == expected


def test_players_lose_their_best_scores_on_the_way(arcade):
    left = arcade.items(SCORE)
    struck = [fields for fields in arcade.images(SCORE) if fields not in left]
    assert any((player, game) not in arcade.rows(BEST) for game, player, _ in struck)

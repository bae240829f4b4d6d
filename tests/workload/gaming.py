"""Games: players score, some scores are corrected, struck off, or all of a player's at once."""

from tests.workload import Workload, change, key

STEPS = 400
GAMES = ("chess", "darts", "tetris")
PLAYERS = tuple(f"p{number:02d}" for number in range(16))
POINTS = {"chess": 3000, "darts": 180, "tetris": 999_999}


class Arcade(Workload):
    """The arcade's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.scores = {}

    def any_score(self):
        return self.random.choice(sorted(self.scores))

    def points(self, game):
        """Few different values in darts, so that players share a place."""
        return self.random.randint(1, 60) * 3 if game == "darts" else self.random.randint(1, POINTS[game])

    def play(self):
        game, player = self.random.choice(GAMES), self.random.choice(PLAYERS)
        at = self.clock.advance(150)
        self.scores[game, player, at] = place = key(f"GAME#{game}", f"SCORE#{player}#{at}")
        self.table.put_item(Item={**place, "points": self.points(game), "seconds": self.random.randint(20, 900)})

    def correct(self):
        if self.scores:
            name = self.any_score()
            self.table.update_item(**change(self.scores[name], points=self.points(name[0])))

    def strike_off(self):
        if self.scores:
            self.table.delete_item(Key=self.scores.pop(self.any_score()))

    def disqualify(self):
        """Deletes all that a player scored in a game: none of it may stay on a leaderboard."""
        if self.scores:
            game, player, _ = self.any_score()
            with self.table.batch_writer() as batch:
                for name in [name for name in self.scores if name[:2] == (game, player)]:
                    batch.delete_item(Key=self.scores.pop(name))


STEP_WEIGHTS = {Arcade.play: 30, Arcade.correct: 5, Arcade.strike_off: 5, Arcade.disqualify: 2}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says."""
    Arcade(table, seed).take_steps(STEP_WEIGHTS, STEPS)

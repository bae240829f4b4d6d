"""Profiles: users follow each other, mute, stop and come back, write, edit and remove posts, like and take that back.

Nearly all of them follow one, the celebrity. They give themselves names, often after their first posts, change them,
and take them back.
"""

from tests.workload import Workload, change, key, transact

STEPS = 600
USERS = tuple(f"u{number:02d}" for number in range(14))
CELEBRITY = USERS[0]
NAMES = ("Ana", "Björn", "Chidi", "Dana", "Eva", "Farid", "Grace", "Hugo")
WORDS = ("Hello", "rain", "bread", "trains", "again", "garden", "late", "music")


class Network(Workload):
    """The network's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.following = set()
        self.left = set()
        self.posts = {}
        self.likes = set()
        self.names = {}

    def any_of(self, things):
        return self.random.choice(sorted(things))

    def words(self):
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 5)))

    def begin(self, pair):
        reader, author = pair
        self.following.add(pair)
        self.left.discard(pair)
        item = {**key(f"USER#{reader}", f"FOLLOWS#{author}"), "since": self.clock.advance(60)}
        self.table.put_item(Item={**item, **({"muted": True} if self.random.random() < 0.1 else {})})

    def follow(self):
        reader, author = self.random.sample(USERS, k=2)
        self.begin((reader, author))

    def follow_the_celebrity(self):
        self.begin((self.random.choice(USERS[1:]), CELEBRITY))

    def unfollow(self):
        if self.following:
            reader, author = pair = self.any_of(self.following)
            self.following.remove(pair)
            self.left.add(pair)
            self.table.delete_item(Key=key(f"USER#{reader}", f"FOLLOWS#{author}"))

    def come_back(self):
        if self.left:
            self.begin(self.any_of(self.left))

    def mute(self):
        """Mutes an author, or hears him again."""
        if self.following:
            reader, author = self.any_of(self.following)
            place, muted = key(f"USER#{reader}", f"FOLLOWS#{author}"), self.random.random() < 0.6
            self.table.update_item(**(change(place, muted=True) if muted else change(place, ["muted"])))

    def name_user(self, user):
        """A user takes a name, or another one; the place where the user lives is shown nowhere."""
        self.names[user] = self.random.choice(NAMES)
        item = {**key(f"USER#{user}", "PROFILE"), "name": self.names[user], "city": self.random.choice(WORDS)}
        self.table.put_item(Item=item)

    def take_name(self):
        self.name_user(self.random.choice(USERS))

    def name_the_celebrity(self):
        self.name_user(CELEBRITY)

    def drop_name(self):
        """A profile is removed alone: the posts stay."""
        if self.names:
            user = self.any_of(self.names)
            del self.names[user]
            self.table.delete_item(Key=key(f"USER#{user}", "PROFILE"))

    def name_and_edit(self):
        """A user and a post of that user change in one transaction."""
        if name := self.any_post():
            partition, _ = self.posts[name]
            self.clock.advance(30)
            self.names[partition.removeprefix("USER#")] = renamed = self.random.choice(NAMES)
            edited = change(key(*self.posts[name]), text=self.words(), edited=True)
            transact(self.table, ("Update", change(key(partition, "PROFILE"), name=renamed)), ("Update", edited))

    def post(self):
        author = CELEBRITY if self.random.random() < 0.2 else self.random.choice(USERS)
        at = self.clock.advance(180)
        place = f"USER#{author}", f"POST#{at}#p{len(self.posts):04d}"
        self.posts[place[1]] = place
        item = {**key(*place), "text": self.words(), "is_draft": self.random.random() < 0.2}
        self.table.put_item(Item=item)

    def any_post(self):
        live = sorted(name for name, place in self.posts.items() if place)
        return self.random.choice(live) if live else None

    def edit(self):
        if name := self.any_post():
            self.clock.advance(30)
            self.table.update_item(**change(key(*self.posts[name]), text=self.words(), edited=True))

    def publish(self):
        """Makes a draft of a post, or a post of a draft."""
        if name := self.any_post():
            self.table.update_item(**change(key(*self.posts[name]), is_draft=self.random.random() < 0.2))

    def remove_post(self):
        if name := self.any_post():
            self.table.delete_item(Key=key(*self.posts[name]))
            self.posts[name] = None

    def like(self):
        if name := self.any_post():
            number, user = pair = name.rpartition("#")[2], self.random.choice(USERS)
            self.likes.add(pair)
            self.table.put_item(Item={**key(f"POST#{number}", f"LIKE#{user}"), "at": self.clock.advance(20)})

    def take_back(self):
        if self.likes:
            number, user = pair = self.any_of(self.likes)
            self.likes.remove(pair)
            self.table.delete_item(Key=key(f"POST#{number}", f"LIKE#{user}"))


STEP_WEIGHTS = {
    Network.follow: 12,
    Network.follow_the_celebrity: 4,
    Network.unfollow: 6,
    Network.come_back: 4,
    Network.mute: 5,
    Network.post: 14,
    Network.edit: 5,
    Network.publish: 6,
    Network.remove_post: 3,
    Network.like: 10,
    Network.take_back: 4,
    Network.take_name: 10,
    Network.name_the_celebrity: 2,
    Network.drop_name: 3,
    Network.name_and_edit: 3,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says."""
    Network(table, seed).take_steps(STEP_WEIGHTS, STEPS)

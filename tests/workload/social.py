"""Profiles: users follow each other and stop, write posts, like them and take that back."""

from tests.workload import Workload, change, key

STEPS = 420
USERS = tuple(f"u{number:02d}" for number in range(14))


class Network(Workload):
    """The network's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.following = set()
        self.posts = {}
        self.likes = set()

    def any_of(self, things):
        return self.random.choice(sorted(things))

    def follow(self):
        pair = tuple(self.random.sample(USERS, k=2))
        self.following.add(pair)
        user, other = pair
        self.table.put_item(Item={**key(f"USER#{user}", f"FOLLOWS#{other}"), "since": self.clock.advance(60)})

    def unfollow(self):
        if self.following:
            user, other = pair = self.any_of(self.following)
            self.following.remove(pair)
            self.table.delete_item(Key=key(f"USER#{user}", f"FOLLOWS#{other}"))

    def post(self):
        user, name = self.random.choice(USERS), f"p{len(self.posts):04d}"
        self.posts[name] = user
        item = {**key(f"USER#{user}", f"POST#{name}"), "text": "Hello", "at": self.clock.advance(60)}
        self.table.put_item(Item={**item, "is_draft": self.random.random() < 0.3})

    def publish(self):
        """Makes a draft of a post, or a post of a draft."""
        if self.posts:
            name = self.any_of(self.posts)
            place = key(f"USER#{self.posts[name]}", f"POST#{name}")
            self.table.update_item(**change(place, is_draft=self.random.random() < 0.2))

    def remove_post(self):
        if self.posts:
            name = self.any_of(self.posts)
            self.table.delete_item(Key=key(f"USER#{self.posts.pop(name)}", f"POST#{name}"))

    def like(self):
        if self.posts:
            name, user = pair = self.any_of(self.posts), self.random.choice(USERS)
            self.likes.add(pair)
            self.table.put_item(Item={**key(f"POST#{name}", f"LIKE#{user}"), "at": self.clock.advance(20)})

    def take_back(self):
        if self.likes:
            name, user = pair = self.any_of(self.likes)
            self.likes.remove(pair)
            self.table.delete_item(Key=key(f"POST#{name}", f"LIKE#{user}"))


STEP_WEIGHTS = {
    Network.follow: 14,
    Network.unfollow: 6,
    Network.post: 8,
    Network.publish: 6,
    Network.remove_post: 2,
    Network.like: 16,
    Network.take_back: 5,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says."""
    Network(table, seed).take_steps(STEP_WEIGHTS, STEPS)

"""Sessions: users sign in, fill a cart, come back, sign out, or stay away until their session expires."""

from decimal import Decimal

from tests.workload import Workload, change, key

STEPS = 420
USERS = 25
LIFETIME_SECONDS = 2 * 60 * 60
PRICES = {"TEA": "3.40", "MUG": "12", "KETTLE": "54.95", "BISCUITS": "2.15", "SPOON": "1.5"}
SYSTEMS = ("Android 16", "iOS 19.2", "Windows 11", "Debian 12", "macOS 15")


class Sessions(Workload):
    """The service's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.live = {}
        self.carts = {}
        self.expired = set()

    def session_key(self, session_id):
        return key(f"SESSION#{session_id}", "METADATA")

    def line_key(self, session_id, sku):
        return key(f"SESSION#{session_id}", f"LINE#{sku}")

    def expires(self):
        return int(self.clock.now.timestamp()) + LIFETIME_SECONDS

    def sign_in(self):
        session_id = f"{self.random.getrandbits(64):016x}"
        session = {
            "user_id": f"u-{self.random.randint(1, USERS):02d}",
            "started": self.clock.text(),
            "expires": self.expires(),
            "device": {"system": self.random.choice(SYSTEMS), "is_trusted": self.random.random() < 0.5, "push": None},
            "token_hash": self.random.randbytes(16),
            "scopes": set(self.random.sample(("read", "write", "admin"), k=2)),
        }
        self.live[session_id] = session
        self.table.put_item(Item={**self.session_key(session_id), **session})

    def come_back(self):
        """Moves the expiry on; several visits in one moment change nothing, so they make no record."""
        session_id = self.random.choice(list(self.live))
        self.live[session_id]["expires"] = self.expires()
        for _ in range(self.random.randint(1, 2)):
            self.table.update_item(**change(self.session_key(session_id), expires=self.expires()))

    def fill_cart(self):
        """Puts a line into a cart, or another quantity of what is in it."""
        session_id, sku = self.random.choice(list(self.live)), self.random.choice(list(PRICES))
        self.carts.setdefault(session_id, {})[sku] = quantity = self.random.randint(1, 4)
        line = {"price": Decimal(PRICES[sku]), "quantity": quantity}
        self.table.put_item(Item={**self.line_key(session_id, sku), **line})

    def empty_line(self):
        filled = [session_id for session_id in self.live if self.carts.get(session_id)]
        if filled:
            session_id = self.random.choice(filled)
            sku = self.random.choice(list(self.carts[session_id]))
            del self.carts[session_id][sku]
            self.table.delete_item(Key=self.line_key(session_id, sku))

    def sign_out(self):
        self.end(self.random.choice(list(self.live)))

    def end(self, session_id):
        """Deletes a session, and then the lines of its cart, as the cascade does wherever the function runs."""
        del self.live[session_id]
        self.table.delete_item(Key=self.session_key(session_id))
        for sku in self.carts.pop(session_id, ()):
            self.table.delete_item(Key=self.line_key(session_id, sku))

    def expire(self):
        """Deletes what has expired by now, as the service would: each item on its own."""
        now = int(self.clock.now.timestamp())
        for session_id in [name for name, session in self.live.items() if session["expires"] < now]:
            self.end(session_id)
            self.expired.add(session_id)


STEP_WEIGHTS = {
    Sessions.sign_in: 10,
    Sessions.come_back: 11,
    Sessions.fill_cart: 9,
    Sessions.empty_line: 2,
    Sessions.sign_out: 3,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says, and returns the keys of the sessions that were deleted by expiry."""
    sessions = Sessions(table, seed)
    sessions.sign_in()
    for _ in range(STEPS):
        sessions.clock.advance(20)
        sessions.expire()
        if not sessions.live:
            sessions.sign_in()
        sessions.take_steps(STEP_WEIGHTS)
    return {tuple(sessions.session_key(session_id).values()) for session_id in sessions.expired}

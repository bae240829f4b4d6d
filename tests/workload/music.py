"""A music library: songs come and go, some cover others; their ids at other services are added, changed, moved and
removed.
"""

from decimal import Decimal

from tests.workload import Workload, change, key, plain

STEPS = 640
ALBUMS = {
    ("Nina Valo", "Northern Lines"): 2019,
    ("Nina Valo", "Öar"): 2023,
    ("Los Cometas", "Mañana Azul"): 2008,
    ("Los Cometas", "En Vivo"): 2012,
    ("The Paper Kites Club", "Side Streets"): 2021,
    ("坂本ひかり", "夜の駅"): 2017,
}
WORDS = ("Harbour", "Amber", "Winter", "Paper", "Signal", "Río", "Étude", "Glass", "Lantern", "Orbit", "Velvet", "Tide")
PROVIDERS = ("spotify", "isrc", "musicbrainz", "deezer")
GENRES = ("indie", "folk", "ambient", "jazz", "son", "city-pop")
ROLES = ("vocals", "piano", "producer", "drums")


def external_id(random, provider):
    """An id that looks like the service's own."""
    if provider == "isrc":
        return f"SE{random.randint(100, 999)}{random.randint(10**6, 10**7 - 1)}"
    return f"{random.getrandbits(56):014x}"


class Library(Workload):
    """The library's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.songs = {}
        self.removed = {}

    def song_key(self, name):
        artist, album, song = name
        return key(f"song#{artist}#{album}", song)

    def album_key(self, name):
        artist, album = name
        return key(f"album#{artist}", album)

    def any_song(self):
        return self.random.choice(list(self.songs))

    def write(self, name, **values):
        """Sets attributes of a song, here and in the table."""
        self.songs[name] |= values
        self.table.update_item(**change(self.song_key(name), **values))

    # --- albums and songs

    def add_albums(self):
        with self.table.batch_writer() as batch:
            for name, year in ALBUMS.items():
                barcodes = {self.random.randbytes(6), self.random.randbytes(6)}
                item = {"year": year, "label": None, "barcodes": barcodes, "chart_positions": {3, 17, 40}}
                batch.put_item(Item={**self.album_key(name), **item, "cover": self.random.randbytes(32)})

    def rename_label(self):
        album = self.random.choice(list(ALBUMS))
        label = self.random.choice(("Fjord", "Discos Sur", "夜間"))
        self.table.update_item(**change(self.album_key(album), label=label))

    def correct_year(self):
        album = self.random.choice(list(ALBUMS))
        self.table.update_item(**change(self.album_key(album), year=ALBUMS[album] + self.random.randint(-1, 1)))

    def add_song(self):
        artist, album = self.random.choice(list(ALBUMS))
        song = f"{self.random.choice(WORDS)} {self.random.choice(WORDS)}"
        name = (artist, album, song)
        if name not in self.songs:
            self.put(name, self.new_song())

    def put(self, name, song):
        self.removed.pop(name, None)
        self.songs[name] = song
        self.table.put_item(Item={**self.song_key(name), **song})

    def new_song(self):
        """A song with an attribute of every type."""
        random = self.random
        providers = random.sample(PROVIDERS, k=random.randint(1, 2))
        return {
            "external_ids": {provider: external_id(random, provider) for provider in providers},
            "seconds": random.randint(95, 420),
            "gain_db": plain(Decimal(random.randint(-1400, -100)).scaleb(-2)),
            "fingerprint": Decimal(10**37 + random.randrange(9 * 10**37)),
            "credits": [random.choice(ROLES)],
            "cover": random.randbytes(9),
            "genres": set(random.sample(GENRES, k=2)),
            "moods": {random.randint(-5, 0), Decimal("0.5")},
            "hashes": {random.randbytes(3)},
            "is_explicit": random.random() < 0.1,
            "lyrics": None,
            "added": self.clock.advance(240),
        } | ({"covers": self.any_original()} if self.songs and random.random() < 0.2 else {})

    def any_original(self):
        """Whose song a cover is: songs of one name on several albums of an artist are one original."""
        artist, _, song = self.any_song()
        return {"artist": artist, "song": song}

    def remove_song(self):
        name = self.any_song()
        self.removed[name] = self.songs.pop(name)
        self.table.delete_item(Key=self.song_key(name))

    def add_song_again(self):
        """Puts back a removed song, with the external ids that it had."""
        if self.removed:
            name = self.random.choice(list(self.removed))
            self.put(name, self.removed[name])

    def rename_song(self):
        """Moves a song to another key: one removed, one added, the external ids with it."""
        artist, album, song = name = self.any_song()
        renamed = (artist, album, f"{song} ({self.random.choice(('live', 'remix', 'demo'))})")
        if "(" in song or renamed in self.songs:
            return
        content = self.songs.pop(name)
        self.table.delete_item(Key=self.song_key(name))
        self.put(renamed, content)

    # --- attributes of songs

    def set_external_id(self):
        """Adds an id, or changes the one that the song has at the provider."""
        name = self.any_song()
        provider = self.random.choice(PROVIDERS)
        ids = self.songs[name]["external_ids"] | {provider: external_id(self.random, provider)}
        self.write(name, external_ids=ids)

    def drop_external_id(self):
        """Removes an id; the last one leaves an empty map."""
        name = self.any_song()
        ids = dict(self.songs[name]["external_ids"])
        if ids:
            del ids[self.random.choice(list(ids))]
        self.write(name, external_ids=ids)

    def move_external_id(self):
        """Takes an id from one song and gives it to another, which two records tell in that order."""
        name, other = self.any_song(), self.any_song()
        ids = dict(self.songs[name]["external_ids"])
        if not ids or other == name:
            return
        provider = self.random.choice(list(ids))
        moved = ids.pop(provider)
        self.write(name, external_ids=ids)
        self.write(other, external_ids=self.songs[other]["external_ids"] | {provider: moved})

    def credit_original(self):
        """Says that a song is a cover, or of another song than it was said to be; or that it is none."""
        name = self.any_song()
        if "covers" in self.songs[name] and self.random.random() < 0.4:
            del self.songs[name]["covers"]
            self.table.update_item(**change(self.song_key(name), remove=["covers"]))
        else:
            self.write(name, covers=self.any_original())

    def correct_length(self):
        self.write(self.any_song(), seconds=self.random.randint(95, 420))

    def same_length(self):
        """Sets the length that the song has: no change, so no record."""
        name = self.any_song()
        self.write(name, seconds=self.songs[name]["seconds"])

    def credit(self):
        name = self.any_song()
        self.write(name, credits=[*self.songs[name]["credits"], self.random.choice(ROLES)][-2:])

    def retag(self):
        self.write(self.any_song(), genres=set(self.random.sample(GENRES, k=self.random.randint(1, 3))))

    def new_cover(self):
        self.write(self.any_song(), cover=self.random.randbytes(9))

    def count_play(self):
        name = self.any_song()
        self.table.update_item(
            Key=self.song_key(name), UpdateExpression="ADD plays :one", ExpressionAttributeValues={":one": 1}
        )
        self.songs[name]["plays"] = self.songs[name].get("plays", 0) + 1


STEP_WEIGHTS = {
    Library.add_song: 20,
    Library.remove_song: 8,
    Library.add_song_again: 8,
    Library.rename_song: 5,
    Library.set_external_id: 18,
    Library.drop_external_id: 9,
    Library.move_external_id: 6,
    Library.credit_original: 9,
    Library.correct_length: 8,
    Library.same_length: 3,
    Library.credit: 4,
    Library.retag: 4,
    Library.new_cover: 2,
    Library.count_play: 4,
    Library.rename_label: 2,
    Library.correct_year: 2,
}


def run(table, seed):
    """Adds the albums and then takes as many steps as ``STEPS`` says."""
    library = Library(table, seed)
    library.add_albums()
    for _ in range(120):
        library.add_song()
    library.take_steps(STEP_WEIGHTS, STEPS)

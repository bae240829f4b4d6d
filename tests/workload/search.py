"""What is searched: products are renamed, priced, discontinued, sold again and reviewed; songs get titles in further
languages.
"""

from decimal import Decimal

from tests.workload import Workload, change, key, plain

STEPS = 360
PRODUCTS = {
    "TEA-100": ("Sencha tea, 100 g", "tea", Decimal("8.9")),
    "TEA-250": ("Assam tea, 250 g", "tea", Decimal("12.5")),
    "TEA-300": ("Herbal teas, mixed", "tea", Decimal("9.2")),
    "CUP-01": ("Porcelain cup", "crockery", Decimal(6)),
    "CUP-02": ("Cup with a saucer", "crockery", Decimal("9.75")),
    "POT-10": ("Teapot, 1 l", "crockery", Decimal("34.99")),
    "TIN-07": ("Tea tin “Kyōto”", "storage", Decimal("4.2")),
    "TIN-08": ("Tins, set of three", "storage", Decimal("13.5")),
    "SPN-03": ("Measuring spoon", "tools", Decimal("3.333")),
    "STR-01": ("Strainer for loose tea", "tools", Decimal("5.4")),
    "GFT-50": ("Voucher", "gifts", Decimal(50)),
}
CUSTOMERS = tuple(f"c-{number:03d}" for number in range(1, 25))
ENDINGS = ("", ", new", ", second choice")
SONGS = {
    ("Mara Lind", "Hinter den Bergen"): (
        {"de": "Die alten Häuser", "en": "The Old Houses", "es": "Las casas viejas", "ja": "古い家"},
        {"de": "Ein Brief im Winter", "en": "A Letter in Winter", "es": "Una carta en invierno"},
        {"de": "Wandern ohne Schuhe", "en": "Walking Without Shoes", "ja": "靴なしで歩く"},
    ),
    ("Ánima del Río", "Orillas"): (
        {"es": "Canción de los puentes", "en": "Song of the Bridges", "de": "Lied der Brücken"},
        {"es": "El río duerme", "en": "The River Sleeps", "ja": "川は眠る"},
        {"es": "Noches de lluvia", "en": "Rainy Nights", "de": "Regennächte", "ja": "雨の夜"},
    ),
    ("夕凪", "海辺の町"): (
        {"ja": "東京の夜明け", "en": "Dawn in Tokyo", "de": "Morgengrauen in Tokio"},
        {"ja": "雨の駅", "en": "Station in the Rain", "es": "La estación bajo la lluvia"},
    ),
}


class Catalogue(Workload):
    """Its own view of the table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.products = {}
        self.reviews = {}
        self.songs = {}

    # --- products

    def any_sku(self):
        return self.random.choice(sorted(self.products))

    def product_key(self, sku):
        return key(f"SKU#{sku}", "PRODUCT")

    def write_product(self, sku, **values):
        self.products[sku] |= values
        self.table.update_item(**change(self.product_key(sku), **values))

    def add_product(self):
        """Adds a product that is not there, with the reviews that it had."""
        missing = sorted(PRODUCTS.keys() - self.products.keys())
        if missing:
            sku = self.random.choice(missing)
            name, category, price = PRODUCTS[sku]
            self.products[sku] = {"name": name, "category": category, "price": price}
            self.table.put_item(Item={**self.product_key(sku), **self.products[sku]})

    def remove_product(self):
        """Removes a product alone: its reviews stay."""
        sku = self.any_sku()
        if len(self.products) > 5:
            del self.products[sku]
            self.table.delete_item(Key=self.product_key(sku))

    def rename(self):
        sku = self.any_sku()
        self.write_product(sku, name=PRODUCTS[sku][0] + self.random.choice(ENDINGS))

    def price(self):
        sku = self.any_sku()
        factor = self.random.choice((Decimal("0.9"), Decimal("0.75"), Decimal("1.1")))
        self.write_product(sku, price=plain((PRODUCTS[sku][2] * factor).quantize(Decimal("0.001"))))

    def move(self):
        """Puts a product among the gifts, or back."""
        sku = self.any_sku()
        self.write_product(sku, category=self.random.choice((PRODUCTS[sku][1], "gifts")))

    def discontinue(self):
        self.write_product(self.any_sku(), discontinued=True)

    def sell_again(self):
        for sku in sorted(self.products):
            if self.products[sku].pop("discontinued", None):
                self.table.update_item(**change(self.product_key(sku), remove=["discontinued"]))
                return

    # --- reviews

    def review(self):
        """Reviews a product, or amends a review of it."""
        name = self.random.choice(sorted(PRODUCTS)), self.random.choice(CUSTOMERS)
        self.reviews[name] = {"stars": self.random.choice((1, 2, 3, 4, 4, 5, 5)), "at": self.clock.advance(60)}
        sku, customer_id = name
        self.table.put_item(Item={**key(f"SKU#{sku}", f"REVIEW#{customer_id}"), **self.reviews[name]})

    def take_back(self):
        if self.reviews:
            sku, customer_id = name = self.random.choice(sorted(self.reviews))
            del self.reviews[name]
            self.table.delete_item(Key=key(f"SKU#{sku}", f"REVIEW#{customer_id}"))

    # --- songs

    def song_key(self, name):
        artist, album, song = name
        return key(f"song#{artist}#{album}", song)

    def add_song(self):
        """Adds a song under its first title, with that alone or with all."""
        (artist, album), titles = self.random.choice(list(SONGS.items()))
        all_titles = self.random.choice(titles)
        original = next(iter(all_titles))
        name = (artist, album, all_titles[original])
        if name not in self.songs:
            given = all_titles if self.random.random() < 0.5 else {original: all_titles[original]}
            self.songs[name] = (all_titles, dict(given))
            item = {"titles": dict(given), "seconds": self.random.randint(95, 420), "added": self.clock.advance(60)}
            self.table.put_item(Item={**self.song_key(name), **item})

    def any_song(self):
        return self.random.choice(sorted(self.songs)) if self.songs else None

    def translate(self):
        """Adds a title in another language."""
        if name := self.any_song():
            known, titles = self.songs[name]
            if missing := sorted(known.keys() - titles.keys()):
                language = self.random.choice(missing)
                titles[language] = known[language]
                self.table.update_item(**change(self.song_key(name), titles=titles))

    def retitle(self):
        """Changes a title in one language, or changes it back."""
        if name := self.any_song():
            known, titles = self.songs[name]
            language = self.random.choice(sorted(titles) or sorted(known))
            titles[language] = known[language] + self.random.choice(("", " (live)"))
            self.table.update_item(**change(self.song_key(name), titles=titles))

    def drop_title(self):
        """Takes a title away; the last one leaves an empty map."""
        if name := self.any_song():
            _, titles = self.songs[name]
            if titles:
                del titles[self.random.choice(sorted(titles))]
                self.table.update_item(**change(self.song_key(name), titles=titles))

    def remove_song(self):
        if name := self.any_song():
            del self.songs[name]
            self.table.delete_item(Key=self.song_key(name))


STEP_WEIGHTS = {
    Catalogue.add_product: 12,
    Catalogue.remove_product: 2,
    Catalogue.rename: 6,
    Catalogue.price: 8,
    Catalogue.move: 4,
    Catalogue.discontinue: 5,
    Catalogue.sell_again: 5,
    Catalogue.review: 40,
    Catalogue.take_back: 8,
    Catalogue.add_song: 16,
    Catalogue.translate: 14,
    Catalogue.retitle: 8,
    Catalogue.drop_title: 4,
    Catalogue.remove_song: 2,
}


def run(table, seed):
    """Adds the products and then takes as many steps as ``STEPS`` says."""
    catalogue = Catalogue(table, seed)
    for _ in PRODUCTS:
        catalogue.add_product()
    catalogue.take_steps(STEP_WEIGHTS, STEPS)

"""The queries of docs/search.md, the indices that they search, and what a plain look at the items finds instead."""

import json
import re
from collections import Counter, defaultdict
from fractions import Fraction

from handlers.music import SONG
from handlers.shop import ORDER, ORDER_ITEM, PRODUCT, REVIEW
from streamfold.derivations.derivation import searches
from streamfold.derivations.search.indexes import SearchIndex
from streamfold.derivations.search.options import shown_index
from tests.helpers.commands import ROOT

HITS_MAX = 10
"""The hits that OpenSearch gives where a query does not say how many."""
TEAS_AND_CUPS = {"tea", "teas", "cup", "cups"}
TEAPOTS = {"teapot", "teapots"}


def page_query(index):
    """The query of docs/search.md on an index."""
    block = re.compile(rf"^```json {index}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    (text,) = block.findall((ROOT / "docs/search.md").read_text("utf-8"))
    return json.loads(text)


def song_query(text):
    """The query of docs/search.md on songs, with another text."""
    query = page_query("songs")
    query["query"]["multi_match"]["query"] = text
    return query


def create_indices(app, server):
    """Makes the index of each search on a server, and its alias, as ``streamfold search create`` does."""
    for index in indices_of(app):
        server.ask("PUT", f"/{index.first}", index.body)


def remove_indices(app, server):
    for index in indices_of(app):
        server.ask("DELETE", f"/{index.first}")


def indices_of(app):
    return [SearchIndex(route, shown_index(route)) for route in searches(app.routes)]


class Answer:
    """What OpenSearch answered: the ids of its hits in their order, and the counts of its only facet."""

    def __init__(self, server, index, query):
        server.ask("POST", f"/{index}/_refresh")
        answer = server.ask("POST", f"/{index}/_search", query)
        self.ids = [hit["_id"] for hit in answer["hits"]["hits"]]
        self.total = answer["hits"]["total"]["value"]
        facets = answer.get("aggregations", {}).values()
        self.facet = {bucket["key"]: bucket["doc_count"] for facet in facets for bucket in facet["buckets"]}


def words(text):
    return set(re.findall(r"\w+", text.lower()))


def products_found(items):
    """Teas and cups for no more than 10, the best first, and how many of each category.

    ``items`` gives the items of a key, by the fields of the key.
    """
    stars = defaultdict(list)
    for (sku, _), review in items(REVIEW).items():
        stars[sku].append(review["stars"])
    found = {
        sku: product
        for (sku,), product in items(PRODUCT).items()
        if words(product["name"]) & TEAS_AND_CUPS and product["price"] <= 10 and "discontinued" not in product
    }
    order = sorted(found, key=lambda sku: (-Fraction(sum(stars[sku]), max(len(stars[sku]), 1)), found[sku]["price"]))
    return [f"SKU#{sku}|PRODUCT" for sku in order], Counter(found[sku]["category"] for sku in found)


def orders_found(items):
    """Paid orders with a line of three teapots or more, by their totals; of equal ones the older first."""
    with_teapots = {
        order_id
        for (order_id, _), line in items(ORDER_ITEM).items()
        if words(line["name"]) & TEAPOTS and line["quantity"] >= 3
    }
    found = {
        order_id: order
        for (order_id,), order in items(ORDER).items()
        if order["status"] == "paid" and order_id in with_teapots
    }
    by_total = sorted(found, key=lambda each: (-found[each]["total"], found[each]["at"]))
    return [f"ORDER#{order_id}|METADATA" for order_id in by_total]


def songs_found(items, is_meant):
    """The titles of songs that are meant, by their ids, and how many there are in each language."""
    found = {
        (*name, language): title
        for name, song in items(SONG).items()
        for language, title in song["titles"].items()
        if is_meant(title, *name)
    }
    return {"#".join(name) for name in found}, Counter(name[-1] for name in found)

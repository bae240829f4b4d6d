"""The site of the documentation in Chromium: its search finds newcomers' words, and no page scrolls sideways."""

import functools
import os
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote_plus

import pytest

SITE = Path(__file__).parents[2] / ".site/build"
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html") if "decisions" not in page.parts)
RESULTS_LOOKED_AT = 3
WORDS_FOUND_MIN = 27
COLUMNS_MAX = 4
"""Columns that a telephone has room for: tables of more scroll in their own box."""
CDC = "https://kloudvin.com/learn/aws-zero-to-hero/dynamodb-streams-change-data-capture-event-driven-pipelines/"
SINGLE_TABLE = "https://kloudvin.com/learn/aws-zero-to-hero/dynamodb-single-table-design-access-patterns-gsi/"
AGGREGATIONS = "https://www.pluralsight.com/resources/blog/cloud/building-aggregations-with-dynamodb-streams"
OUTBOX = (
    "https://aws.amazon.com/blogs/compute/implementing-the-transactional-outbox-pattern-with-amazon-eventbridge-pipes/"
)
PIPELINE_TUNING = "https://adevwrites.space/dynamodb/04-streams-lambda/02-event-driven-react"
GITHUB = "https://github.com"
WORDS = (  # what a newcomer types, the page that answers, where the word was read
    ("poison pill", "failures", PIPELINE_TUNING),
    ("dead letter queue", "failures", CDC),
    ("batch size", "template", PIPELINE_TUNING),
    ("event source mapping", "template", PIPELINE_TUNING),
    ("iterator age", "alarms", CDC),
    ("idempotency", "guarantees", CDC),
    ("deduplication", "guarantees", CDC),
    ("exactly once", "guarantees", f"{GITHUB}/awsdocs/amazon-dynamodb-developer-guide/pull/249"),
    ("change data capture", "audit", CDC),
    ("parallelization factor", "template", CDC),
    ("drift", "operations", CDC),
    ("aggregation", "aggregates", AGGREGATIONS),
    ("leaderboard", "how/a-leaderboard", AGGREGATIONS),
    ("counts", "aggregates", f"{GITHUB}/aws-amplify/amplify-cli/issues/1865"),
    ("join", "lookups", SINGLE_TABLE),
    ("single table design", "keys", SINGLE_TABLE),
    ("hot partition", "hot-rows", SINGLE_TABLE),
    ("gsi", "attributes", SINGLE_TABLE),
    ("outbox", "how/send-notifications", OUTBOX),
    ("float", "numbers", "https://www.tecracer.com/blog/2023/09/teaching-boto3-to-store-floats-and-datetime-objects-in-dynamodb.html"),
    ("datetime", "times", "https://www.tecracer.com/blog/2023/09/teaching-boto3-to-store-floats-and-datetime-objects-in-dynamodb.html"),
    ("multi tenant", "tenants", "https://techminis.com/amazon-dynamodb-data-modeling-for-multi-tenancy--part-2/73289671"),
    ("already inserted items", "how/adopt-a-full-table", f"{GITHUB}/bfansports/dynamodb-to-elasticsearch/issues/7"),
    ("resume backfill", "backfill", f"{GITHUB}/aws-amplify/amplify-category-api/issues/1817"),
    ("reindex", "search-operations", f"{GITHUB}/opensearch-project/OpenSearch/issues/13818"),
    ("nested documents", "search", f"{GITHUB}/bfansports/dynamodb-to-elasticsearch/issues/9"),
    ("costs", "how/estimate-what-it-costs", f"{GITHUB}/awslabs/emr-dynamodb-connector/issues/124"),
    ("timeline", "feeds", f"{GITHUB}/mastodon/mastodon/issues/5398"),
    ("unfollow", "feeds", f"{GITHUB}/mastodon/mastodon/issues/24527"),
    ("localstack", "sources", f"{GITHUB}/localstack/localstack/issues/5942"),
)  # fmt: skip
WIDTHS = {390: COLUMNS_MAX, 1280: 99}
SECONDS_MAX = 10
"""The site's script puts wide tables into boxes after the page is loaded, which may take a while."""
SCROLLING = """(columns) => [...document.querySelectorAll('html, .md-typeset__scrollwrap, .md-content pre > code')]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .filter((box) => box.querySelectorAll('tr:first-child > *').length <= columns)
  .map((box) => box.innerText.slice(0, 80))"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    """The site behind a server of this machine: the search starts a worker, which browsers refuse to a folder."""
    if not PAGES:
        missing = "no site: run make site"
        pytest.fail(missing) if os.environ.get("REQUIRE_ENGINES") == "1" else pytest.skip(missing)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def found(page, address, word):
    """The pages that the search lists first."""
    page.goto(f"{address}/index.html?q={quote_plus(word)}")
    page.locator(".md-search-result__meta", has_text="matching").wait_for()
    links = page.locator(".md-search-result__item > a:first-child").evaluate_all("all => all.map((one) => one.href)")
    return [link.removeprefix(f"{address}/").split(".html")[0] for link in links[:RESULTS_LOOKED_AT]]


def test_the_search_finds_the_words_of_newcomers(chromium, address):
    page = chromium.new_page()
    missed = {word: pages for word, wanted, _ in WORDS if wanted not in (pages := found(page, address, word))}
    page.close()
    assert len(WORDS) - len(missed) >= WORDS_FOUND_MIN, f"name these words in .site/words.yml: {missed}"


def boxes_that_scroll(page, columns_max):
    """The beginnings of their texts, once the page is laid out."""
    until = time.monotonic() + SECONDS_MAX
    while (boxes := page.evaluate(SCROLLING, columns_max)) and time.monotonic() < until:
        page.wait_for_timeout(100)
    return boxes


def test_no_page_scrolls_sideways(chromium, address):
    page = chromium.new_page()
    scrolling = {}
    for name in PAGES:
        page.goto(f"{address}/{name}")
        for width, columns_max in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": 900})
            if boxes := boxes_that_scroll(page, columns_max):
                scrolling[name, width] = boxes
    page.close()
    assert scrolling == {}

"""A page: its data, and that nothing of it can become markup, a script or a request."""

import json
import re

import pytest

from handlers import app as shop
from streamfold.errors import SettingsError
from streamfold.pages.graph import drawn, graph_of
from streamfold.pages.page import embedded, page, write_page
from tests.helpers.drawn_applications import MARKUP, drawn_application

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def shown(app, sections=()):
    return page("A page", {**drawn(graph_of(app)), "sections": list(sections)})


def read_back(text):
    return json.loads(DATA.search(text)[1])


def test_a_page_embeds_the_whole_graph():
    data = read_back(shown(shop))["graph"]
    assert data == json.loads(json.dumps(graph_of(shop).as_json()))


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "&lt;", "\u2028", MARKUP, "\\u003c", "\0", "ß"])
def test_no_text_of_the_data_is_markup_and_all_of_it_is_read_back(text):
    found = embedded({text: [text]})

    assert not set("<>&\u2028\u2029") & set(found)
    assert json.loads(found) == {text: [text]}


def test_a_title_is_escaped():
    assert "<title>&lt;b&gt;" in page("<b>", drawn(graph_of(shop)))


def test_markup_in_keys_adds_no_element_to_a_page():
    plain, marked = shown(shop), shown(drawn_application(3))
    assert MARKUP in json.dumps(read_back(marked), ensure_ascii=False).replace('\\"', '"')
    for element in ("<script", "</script", "<img", "<!--"):
        assert marked.count(element) == plain.count(element)


def test_a_page_holds_no_address():
    assert not re.search(
        r"https?:|(?<![:/])//[\w.]+\.\w+/|\bsrc=|@import|url\((?!#)", shown(shop).replace('"url(#arrow)"', "")
    )


def test_the_policy_allows_the_own_script_and_style_alone():
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', shown(shop))[1]
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe" not in policy


def test_a_place_that_cannot_be_written_is_an_error_with_its_remedy(tmp_path):
    with pytest.raises(SettingsError, match=r"--html .*none/a.html cannot be written: No such file .* Name a file in"):
        write_page(tmp_path / "none" / "a.html", "text")

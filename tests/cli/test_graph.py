"""``streamfold graph``: Mermaid on standard output, JSON, or a page."""

import json


def test_a_graph_is_printed_as_mermaid(folder):
    ran = folder.run("graph")

    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "flowchart LR",
        "    accTitle: shop: 1 handler",
        '    n0["order_total<br/>view"]',
        '    n1(["ORDER#{order_id} / ITEM#{sku}"])',
        '    n2[("ORDER#{order_id} / TOTAL")]',
        "    n1 --> n0",
        "    n0 ==> n2",
    ]


def test_a_graph_is_printed_as_json(folder):
    found = json.loads(folder.run("graph", "--json").out)

    assert [node["name"] for node in found["nodes"] if node["kind"] == "handler"] == ["order_total"]
    assert found["nodes"][0]["details"]["declared_at"] == "handlers.py:10"
    assert found["groups"] == ["main"]


def test_a_graph_is_written_as_a_page(folder):
    ran = folder.run("graph", "--html", "graph.html")

    assert (ran.code, ran.out) == (0, "The graph is in graph.html: open it in a browser.\n")
    text = (folder.path / "graph.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "ORDER#{order_id} / TOTAL" in text


def test_a_page_is_not_written_into_a_folder_that_does_not_exist(folder):
    ran = folder.run("graph", "--html", "none/graph.html")

    assert ran.code == 2
    assert "--html none/graph.html cannot be written: No such file or directory. Name a file in a folder" in ran.err


def test_a_page_does_not_replace_a_folder(folder):
    ran = folder.run("graph", "--html", ".")

    assert (ran.code, ran.err) == (2, "Error: --html . is a folder: expected a file.\n")

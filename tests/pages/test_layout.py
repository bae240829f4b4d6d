"""The layout: components stand apart, the largest first, and no link crosses a box, whatever the graph is."""

from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers import app as shop
from streamfold.pages.graph import HANDLER, drawn, graph_of
from streamfold.pages.layout import Box, Link, components, drawing
from tests.helpers.drawn_applications import drawn_application

SAMPLES = 24
"""Points of a curve that are looked at."""
SLACK = 0.01
"""Pixels by which the end of a link may touch its box."""
SECONDS_MAX = 20
"""For 300 handlers. A second is what it takes; a busy machine is no failure."""


def sampled(begin, end):
    """The points of a drawn segment: a straight line, or a curve with level ends."""
    (x, y), (end_x, end_y) = begin, end
    across = (x + end_x) / 2
    for number in range(SAMPLES + 1):
        t = number / SAMPLES
        risen = 3 * t * t - 2 * t * t * t  # of a cubic curve whose control points have the heights of its ends
        yield (1 - t) ** 3 * x + 3 * t * (1 - t) * across + t**3 * end_x, y + (end_y - y) * risen


def crossed(found, boxes, links):
    """Pairs of a link and a box that it runs over."""
    areas = [(*found.corners[box.id], box) for box in boxes]
    return [
        (link, box.id)
        for link, points in zip(links, found.points, strict=True)
        for one, other in pairwise(points)
        for left, top, box in areas
        if max(one[0], other[0]) > left + SLACK
        and min(one[0], other[0]) < left + box.width - SLACK
        and any(
            left + SLACK < x < left + box.width - SLACK and top + SLACK < y < top + box.height - SLACK
            for x, y in sampled(one, other)
        )
    ]


def overlapping(areas):
    def meet(one, other):
        return all(one[at] < other[at] + other[at + 2] and other[at] < one[at] + one[at + 2] for at in (0, 1))

    return [(one, other) for at, one in enumerate(areas) for other in areas[:at] if meet(one, other)]


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    boxes = [
        Box(str(each), draw(st.sampled_from([40.0, 160.0, 300.0])), draw(st.sampled_from([28.0, 44.0])))
        for each in range(count)
    ]
    ends = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(ends, ends, st.sampled_from("rw")), max_size=30, unique=True))
    return boxes, [Link(str(one), str(other), sort) for one, other, sort in pairs if one != other]


@given(graphs())
def test_no_link_crosses_a_box_and_no_boxes_overlap(graph):
    boxes, links = graph
    found = drawing(boxes, links)

    assert crossed(found, boxes, links) == []
    assert overlapping([(*found.corners[box.id], box.width, box.height) for box in boxes]) == []
    assert overlapping([frame[:4] for frame in found.frames]) == []


@given(graphs())
def test_a_link_begins_at_its_source_and_ends_at_its_target(graph):
    boxes, links = graph
    found, sizes = drawing(boxes, links), {box.id: box for box in boxes}
    for link, points in zip(links, found.points, strict=True):
        for name, (x, y) in ((link.source, points[0]), (link.target, points[-1])):
            left, top = found.corners[name]
            assert x == pytest.approx(left, abs=0.1) or x == pytest.approx(left + sizes[name].width, abs=0.1)
            assert top < y < top + sizes[name].height


@given(graphs())
def test_each_component_has_a_frame_around_all_that_is_its_own(graph):
    boxes, links = graph
    found = drawing(boxes, links)
    joined = components(boxes, links)

    assert sorted(map(sorted, (frame.boxes for frame in found.frames))) == sorted(
        sorted(b.id for b in own) for own, _ in joined
    )
    for frame in found.frames:
        points = [
            point
            for link, path in zip(links, found.points, strict=True)
            if link.source in frame.boxes
            for point in path
        ]
        for x, y in (*points, *(found.corners[name] for name in frame.boxes)):
            assert frame.x < x < frame.x + frame.width
            assert frame.y < y < frame.y + frame.height
    assert [len(frame.boxes) for frame in found.frames] == sorted(
        (len(frame.boxes) for frame in found.frames), reverse=True
    )


def test_without_circles_every_link_goes_to_the_right():
    boxes = [Box(name, 50, 28) for name in "abcd"]
    links = [Link(one, other, "r") for one, other in ("ab", "bc", "ac", "cd")]
    found = drawing(boxes, links)
    assert all(one[0] <= other[0] for points in found.points for one, other in pairwise(points))


def test_a_link_in_each_direction_is_two_lines():
    boxes, links = [Box("a", 50, 28), Box("b", 50, 28)], [Link("a", "b", "r"), Link("b", "a", "w")]
    first, second = drawing(boxes, links).points
    assert not {y for _, y in first} & {y for _, y in second}


def test_nothing_is_drawn_of_nothing():
    assert drawing([], []).frames == []


@pytest.mark.parametrize(("handlers", "seed"), [(10, 0), (10, 1), (50, 0), (50, 1), (300, 0)])
def test_labels_overlap_no_edge(handlers, seed):
    graph = graph_of(drawn_application(seed, handlers))
    shown = drawn(graph)["drawing"]
    boxes = [Box(name, *size) for name, size in shown["sizes"].items()]
    links = [Link(edge.source, edge.target, edge.kind) for edge in graph.edges]
    assert crossed(drawing(boxes, links), boxes, links) == []


def test_an_application_of_300_handlers_is_drawn_at_once():
    graph = graph_of(drawn_application(7, 300))
    began = process_time()
    drawn(graph)
    assert process_time() - began < SECONDS_MAX


def test_components_of_the_shop_are_listed_by_the_number_of_their_handlers():
    graph = graph_of(shop)
    kinds = {node.id: node.kind for node in graph.nodes}
    frames = drawn(graph)["drawing"]["whole"]["frames"]
    handlers = [sum(kinds[each] == HANDLER for each in frame["nodes"]) for frame in frames]

    assert handlers == sorted(handlers, reverse=True)
    assert sum(handlers) == len(shop.routes)
    assert frames[0]["title"].endswith(f" · {handlers[0]} handlers")


def test_a_neighbourhood_holds_who_writes_what_a_handler_reads_and_who_reads_what_it_writes():
    shown = drawn(graph_of(shop))["drawing"]["near"]["handler order_total"]
    names = {name.removeprefix("handler ") for name in shown["corners"] if name.startswith("handler ")}
    assert names == {"order_total", "product_on_line", "order_items", "orders", "all_orders"}

"""A drawing of boxes and links, in which no link crosses a box. Pure: sizes in, positions out.

Each connected component is laid out by itself. Its boxes stand in columns, so that data flows to the right. A link goes
straight through a column, at a height where no box is, and turns only in the gap between two columns. So it crosses no
box, whatever the order of boxes is; the order only decides how many links cross each other.

The steps are those of Sugiyama, Tagawa and Toda (1981): break cycles, choose columns, put bends where a link passes a
column, order each column by the medians of its neighbours, choose heights. Heights are the least squares for an order,
found by pooling (Ayer and others, 1955).
"""

from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

BOX_GAP, BEND_GAP, BEND_HEIGHT = 14.0, 7.0, 2.0
"""Pixels between two boxes of a column, beside a bend, and that a bend takes."""
GAP_WIDTH_MIN, GAP_WIDTH_MAX, GAP_WIDTH_OF_LINK = 56.0, 160.0, 2.5
"""Pixels between two columns: links that share a gap need room to turn."""
PORT_MARGIN = 5.0
"""Pixels between the corner of a box and its outermost link."""
ORDER_ROUNDS, HEIGHT_ROUNDS, PULLS = 12, 10, 3
"""Orders, heights and columns are improved so often; more changed no drawing of the shipped applications."""
FRAME_MARGIN, TITLE_HEIGHT, FRAME_GAP = 14.0, 24.0, 16.0
"""Of a component: inside its frame, above its boxes, and to the next one."""
ROW_WIDTH_MIN = 1150.0
"""Small components stand side by side up to this width, or that of the largest one."""

Points = tuple[tuple[float, float], ...]
"""A link: straight between two points of one height, and a curve with level ends between two others."""


class Box(NamedTuple):
    """What is drawn."""

    id: str
    width: float
    height: float


class Link(NamedTuple):
    """A line between two boxes. Links of one source and sort share their way until they part."""

    source: str
    target: str
    sort: str


class Frame(NamedTuple):
    """A component, with the ids of its boxes."""

    x: float
    y: float
    width: float
    height: float
    boxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Upper corners of boxes by id, points of links in the order given, and a frame for each component."""

    width: float
    height: float
    corners: Mapping[str, tuple[float, float]]
    points: Sequence[Points]
    frames: Sequence[Frame]


def drawing(boxes: Sequence[Box], links: Sequence[Link], size: Callable[[Sequence[Box]], float] = len) -> Drawing:
    """Draws components under and beside each other, those first whose ``size`` is largest."""
    found = sorted(components(boxes, links), key=lambda each: size(each[0]), reverse=True)
    drawn = [(own, numbers, Component(own, [links[number] for number in numbers])) for own, numbers in found]
    row_width = max([ROW_WIDTH_MIN, *(each.width for *_, each in drawn)])
    corners: dict[str, tuple[float, float]] = {}
    points: list[Points] = [()] * len(links)
    frames: list[Frame] = []
    x = y = row_height = width = 0.0
    for own, numbers, component in drawn:
        if x and x + component.width > row_width:
            x, y, row_height = 0.0, y + row_height + FRAME_GAP, 0.0
        inner_x, inner_y = x + FRAME_MARGIN, y + TITLE_HEIGHT + FRAME_MARGIN
        corners |= {name: (inner_x + at[0], inner_y + at[1]) for name, at in component.corners().items()}
        for number, path in zip(numbers, component.paths(), strict=True):
            points[number] = tuple((inner_x + at[0], inner_y + at[1]) for at in path)
        frames.append(Frame(x, y, component.width, component.height, tuple(box.id for box in own)))
        width, row_height = max(width, x + component.width), max(row_height, component.height)
        x += component.width + FRAME_GAP
    return Drawing(width, y + row_height, corners, points, frames)


def components(boxes: Sequence[Box], links: Sequence[Link]) -> list[tuple[list[Box], list[int]]]:
    """The boxes that links join, and the numbers of these links, each in the order given."""
    root_of = {box.id: box.id for box in boxes}

    def root(name: str) -> str:
        while root_of[name] != name:
            root_of[name] = name = root_of[root_of[name]]
        return name

    for link in links:
        root_of[root(link.source)] = root(link.target)
    found: dict[str, tuple[list[Box], list[int]]] = {}
    for box in boxes:
        found.setdefault(root(box.id), ([], []))[0].append(box)
    for number, link in enumerate(links):
        found[root(link.source)][1].append(number)
    return list(found.values())


class Component:
    """Boxes in columns, with bends where a link passes a column. ``width`` and ``height`` are those of its frame."""

    def __init__(self, boxes: Sequence[Box], links: Sequence[Link]) -> None:
        self.boxes, self.links = boxes, links
        number = {box.id: at for at, box in enumerate(boxes)}
        ends = [(number[link.source], number[link.target]) for link in links]
        self.backward = _backward(len(boxes), ends)
        self.ends = [(b, a) if back else (a, b) for (a, b), back in zip(ends, self.backward, strict=True)]
        self.column_of = _columns(len(boxes), self.ends)
        self.heights = [box.height for box in boxes]
        self.ways = self._ways()
        # Two links between the same boxes, one of them back, are two lines.
        self.joined = dict.fromkeys(
            (*step, back) for way, back in zip(self.ways, self.backward, strict=True) for step in pairwise(way)
        )
        self.neighbours: tuple[list[list[int]], list[list[int]]] = (  # before, after
            [[] for _ in self.heights],
            [[] for _ in self.heights],
        )
        for one, other, _ in self.joined:
            self.neighbours[1][one].append(other)
            self.neighbours[0][other].append(one)
        self.order = self._ordered()
        self.centres = self._centres()
        self.begins, self.widths = self._across()
        self.ports = self._ports()
        self.width = self.begins[-1] + self.widths[-1] + 2 * FRAME_MARGIN
        lowest = max(centre + height / 2 for centre, height in zip(self.centres, self.heights, strict=True))
        self.height = lowest + TITLE_HEIGHT + 2 * FRAME_MARGIN

    def _ways(self) -> list[list[int]]:
        """For each link the vertices that it passes: its ends, and a bend in each column between them."""
        bends: dict[tuple[int, str, bool, int], int] = {}
        ways = []
        for (one, other), link, back in zip(self.ends, self.links, self.backward, strict=True):
            way = [one]
            for column in range(self.column_of[one] + 1, self.column_of[other]):
                known = bends.setdefault((one, link.sort, back, column), len(self.heights))
                if known == len(self.heights):
                    self.heights.append(BEND_HEIGHT)
                    self.column_of.append(column)
                way.append(known)
            ways.append([*way, other])
        return ways

    def is_bend(self, vertex: int) -> bool:
        return vertex >= len(self.boxes)

    # The order in each column.

    def _ordered(self) -> list[list[int]]:
        columns: list[list[int]] = [[] for _ in range(max(self.column_of) + 1)]
        for vertex in self._walked():
            columns[self.column_of[vertex]].append(vertex)
        best, fewest = [list(each) for each in columns], self._crossings(columns)
        for number in range(ORDER_ROUNDS):
            if not fewest:
                break
            rightward = number % 2 == 0
            for column in columns if rightward else reversed(columns):
                self._sort(column, columns, side=0 if rightward else 1)
            crossings = self._crossings(columns)
            if crossings < fewest:
                best, fewest = [list(each) for each in columns], crossings
        return best

    def _walked(self) -> Iterator[int]:
        """All vertices, neighbours near each other."""
        seen: set[int] = set()
        for start in sorted(range(len(self.heights)), key=lambda each: self.column_of[each]):
            waiting = [start]
            while waiting:
                if (vertex := waiting.pop()) not in seen:
                    seen.add(vertex)
                    yield vertex
                    waiting += [each for side in self.neighbours for each in reversed(side[vertex]) if each not in seen]

    def _sort(self, column: list[int], columns: Sequence[Sequence[int]], *, side: int) -> None:
        at = {vertex: number for each in columns for number, vertex in enumerate(each)}
        own = {vertex: number for number, vertex in enumerate(column)}

        def wanted(vertex: int) -> float:
            near = [at[each] for each in self.neighbours[side][vertex]]
            return sum(near) / len(near) if near else own[vertex]

        column.sort(key=wanted)

    def _crossings(self, columns: Sequence[Sequence[int]]) -> int:
        """How often links cross in the gaps: two whose order differs on both sides."""
        at = {vertex: number for each in columns for number, vertex in enumerate(each)}
        crossings = 0
        for column in columns:
            passed: list[int] = []
            for vertex in column:
                ends = [at[each] for each in self.neighbours[1][vertex]]
                crossings += sum(len(passed) - bisect(passed, end) for end in ends)
                for end in ends:
                    insort(passed, end)
        return crossings

    # Heights and columns in pixels.

    def _centres(self) -> list[float]:
        centres = [0.0] * len(self.heights)
        for column in self.order:
            self._space(column, [0.0] * len(column), centres)
        for number in range(HEIGHT_ROUNDS):
            for column in self.order if number % 2 == 0 else reversed(self.order):
                wanted = []
                for vertex in column:
                    near = [centres[each] for side in self.neighbours for each in side[vertex]]
                    wanted.append(sum(near) / len(near) if near else centres[vertex])
                self._space(column, wanted, centres)
        top = min(centre - height / 2 for centre, height in zip(centres, self.heights, strict=True))
        return [centre - top for centre in centres]

    def _space(self, column: Sequence[int], wanted: Sequence[float], centres: list[float]) -> None:
        """Puts the vertices of a column as near as they can be to their wanted heights, in their order."""
        offsets = [0.0]
        for one, other in pairwise(column):
            gap = BEND_GAP if self.is_bend(one) or self.is_bend(other) else BOX_GAP
            offsets.append(offsets[-1] + (self.heights[one] + self.heights[other]) / 2 + gap)
        blocks: list[tuple[float, int]] = []  # sum and number of heights that became one
        for height, offset in zip(wanted, offsets, strict=True):
            total, count = height - offset, 1
            while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
                before = blocks.pop()
                total, count = total + before[0], count + before[1]
            blocks.append((total, count))
        level = [total / count for total, count in blocks for _ in range(count)]
        for vertex, height, offset in zip(column, level, offsets, strict=True):
            centres[vertex] = height + offset

    def _across(self) -> tuple[list[float], list[float]]:
        widths = [
            max((self.boxes[each].width for each in column if not self.is_bend(each)), default=0.0)
            for column in self.order
        ]
        turning = defaultdict[int, int](int)
        for one, other, _ in self.joined:
            turning[self.column_of[one]] += abs(self.centres[one] - self.centres[other]) > 1
        begins, x = [], 0.0
        for column, width in enumerate(widths):
            begins.append(x)
            x += width + min(GAP_WIDTH_MAX, GAP_WIDTH_MIN + GAP_WIDTH_OF_LINK * turning[column])
        return begins, widths

    def _ports(self) -> dict[tuple[int, int, int, bool], float]:
        """The heights at which links meet a vertex: by vertex, side, neighbour, and whether a link goes back."""
        met: dict[tuple[int, int], list[tuple[int, bool]]] = {}
        for one, other, back in self.joined:
            met.setdefault((one, 1), []).append((other, back))
            met.setdefault((other, 0), []).append((one, back))
        found = {}
        for (vertex, side), near in met.items():
            room = 0.0 if self.is_bend(vertex) else self.heights[vertex] - 2 * PORT_MARGIN
            for number, each in enumerate(sorted(near, key=lambda each: (self.centres[each[0]], each))):
                share = (number + 1) / (len(near) + 1)
                found[vertex, side, *each] = self.centres[vertex] + room * (share - 0.5)
        return found

    # What is drawn.

    def corners(self) -> dict[str, tuple[float, float]]:
        """The upper corners of boxes, within the frame."""
        return {
            box.id: (self.begins[self.column_of[number]], self.centres[number] - box.height / 2)
            for number, box in enumerate(self.boxes)
        }

    def paths(self) -> Iterator[Points]:
        """The points of each link, from its source to its target, within the frame."""
        for way, back in zip(self.ways, self.backward, strict=True):
            points = []
            for one, other in pairwise(way):
                near, far = self.column_of[one], self.column_of[other]
                begin, end = self.ports[one, 1, other, back], self.ports[other, 0, one, back]
                if not self.is_bend(one):
                    points.append((self.begins[near] + self.boxes[one].width, begin))
                points += [(self.begins[near] + self.widths[near], begin), (self.begins[far], end)]
            yield tuple(_without_repeats(reversed(points) if back else points))


def _without_repeats(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    last = None
    for point in points:
        if point != last:
            yield point
        last = point


def _backward(count: int, ends: Sequence[tuple[int, int]]) -> list[bool]:
    """The links that close a cycle: drawn against the flow of the data, which goes to the right."""
    leaving: list[list[int]] = [[] for _ in range(count)]
    entered = [0] * count
    for number, (one, other) in enumerate(ends):
        leaving[one].append(number)
        entered[other] += 1
    back, state = [False] * len(ends), [0] * count  # 0: not seen, 1: on the way, 2: done
    for start in sorted(range(count), key=lambda each: entered[each] > 0):
        if state[start]:
            continue
        state[start] = 1
        way = [(start, iter(leaving[start]))]
        while way:
            vertex, rest = way[-1]
            link = next(rest, None)
            if link is None:
                state[vertex] = 2
                way.pop()
                continue
            other = ends[link][1]
            back[link] = state[other] == 1
            if not state[other]:
                state[other] = 1
                way.append((other, iter(leaving[other])))
    return back


def _columns(count: int, ends: Sequence[tuple[int, int]]) -> list[int]:
    """The column of each box: right of all that lead to it, and near to what it leads to."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for one, other in ends:
        after[one].append(other)
        before[other].append(one)
    waiting = [each for each in range(count) if not before[each]]
    missing, column, sorted_ = [len(each) for each in before], [0] * count, []
    while waiting:
        vertex = waiting.pop()
        sorted_.append(vertex)
        for other in after[vertex]:
            column[other] = max(column[other], column[vertex] + 1)
            missing[other] -= 1
            if not missing[other]:
                waiting.append(other)
    for _ in range(PULLS):
        for vertex in reversed(sorted_):
            if len(after[vertex]) > len(before[vertex]):
                column[vertex] = min(column[other] for other in after[vertex]) - 1
    first = min(column)
    return [each - first for each in column]

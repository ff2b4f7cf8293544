"""Physical graphs as pictures: inputs on the left, stores in the middle, outputs on the right, like boards with wires.

Every edge that ends or begins at a node has a row of its own there, and a store shows in the row what it does with what comes
in. Between the columns, each wire has a lane; two share one where they do not meet. Rows of stores and rows of inputs and
outputs are half a row apart, so that no two wires ever lie on one another; and labels stand beside the end of their wire,
where no lane runs, so that they cover nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from headrace.sharing.multiway.graph import Edge, Graph, Keep, Kind, Node, Output, Rule, Store
from headrace.sharing.multiway.graph_text import named, told

_ROW, _LANE, _PAD, _CHARACTER, _LONGEST = 24.0, 14.0, 12.0, 6.7, 44
_STYLE = """
.hr-graph text{font:11px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2328}
.hr-graph .quiet{fill:#59636e}.hr-graph .name{font-weight:700;font-size:12px}
.hr-graph .paper{fill:#fff}.hr-graph .box{fill:#f6f8fa;stroke:#818b98}.hr-graph .head{fill:#e6eaef}
.hr-graph .wire{fill:none;stroke-width:1.6}.hr-graph .there{stroke-width:.8}
.hr-graph .group-by{stroke:#8250df;stroke-dasharray:7 3}.hr-graph .all{stroke:#0969da;stroke-dasharray:2 3}
.hr-graph .shuffle{stroke:#1a7f37}
.hr-graph .tip-group-by{fill:#8250df}.hr-graph .tip-all{fill:#0969da}.hr-graph .tip-shuffle{fill:#1a7f37}
@media (prefers-color-scheme:dark){
.hr-graph text{fill:#e6edf3}.hr-graph .quiet{fill:#9198a1}.hr-graph .paper{fill:#0d1117}
.hr-graph .box{fill:#161b22;stroke:#6e7681}.hr-graph .head{fill:#262c36}
.hr-graph .group-by{stroke:#c297ff}.hr-graph .all{stroke:#6cb6ff}.hr-graph .shuffle{stroke:#56d364}
.hr-graph .tip-group-by{fill:#c297ff}.hr-graph .tip-all{fill:#6cb6ff}.hr-graph .tip-shuffle{fill:#56d364}}
"""
_MEANING = {Kind.SHUFFLE: "to any task", Kind.ALL: "a copy to every task", Kind.GROUP_BY: "to the task of the value"}
_THIN = "thin: already there"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a box: what it says, and which edge comes in or goes out there, on which side."""

    says: str = ""
    comes: Edge | None = None
    goes: Edge | None = None
    comes_right: bool = False


@dataclass(frozen=True, slots=True)
class _Box:
    """A node with its rows; `top` is where its head begins, rows are below."""

    node: Node
    name: str
    rows: tuple[_Row, ...]
    top: float = 0.0

    @property
    def height(self) -> float:
        return _ROW * (len(self.rows) + 1)

    def y(self, index: int) -> float:
        return self.top + _ROW * (index + 1.5)


@dataclass(frozen=True, slots=True)
class _Wire:
    """An edge that ends at one height and begins where rules send over it; `back` says that it ends on the side it begins at."""

    edge: Edge
    begins: tuple[float, ...]
    ends: float
    back: bool = False

    @property
    def span(self) -> tuple[float, float]:
        return min(*self.begins, self.ends), max(*self.begins, self.ends)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where everything is, from left to right: boxes, labels, lanes."""

    inputs: tuple[float, float]
    lanes_in: float
    stores: tuple[float, float]
    lanes_out: float
    outputs: tuple[float, float]


def to_svg(graph: Graph) -> str:
    """Return a graph as a self-contained SVG, for light and dark pages. Equal graphs give equal pictures."""
    names = named(graph)
    stores = _stacked([_Box(store, names[store], _store_rows(graph, store)) for store in graph.stores], _ROW)
    inputs = _beside(
        [_Box(one, names[one], tuple(_Row(goes=edge) for edge in graph.outgoing(one))) for one in graph.inputs], stores
    )
    outputs = _beside([_Box(one, names[one], _output_rows(graph, one)) for one in graph.outputs], stores)
    begins, ends = _heights([*inputs, *stores, *outputs])
    wires = [_Wire(e, begins[e.label], ends[e.label], _is_back(e)) for e in graph.edges]
    into = _lanes([one for one in wires if one.edge.source in graph.inputs])
    out_of = _lanes([one for one in wires if one.edge.source not in graph.inputs])
    columns = _columns(inputs, stores, outputs, into, out_of)
    parts = [_drawn_box(box, columns.inputs) for box in inputs]
    parts += [_drawn_box(box, columns.stores) for box in stores]
    parts += [_drawn_box(box, columns.outputs) for box in outputs]
    parts += [_drawn_wire(wire, lane, columns) for wire, lane in (*into.items(), *out_of.items())]
    bottom = max((box.top + box.height for box in (*inputs, *stores, *outputs)), default=0.0) + _ROW
    return _page(parts, columns.outputs[1] + _PAD, bottom)


def _is_back(edge: Edge) -> bool:
    return isinstance(edge.source, Store) and isinstance(edge.target, Store)


def _store_rows(graph: Graph, store: Store) -> tuple[_Row, ...]:
    rules = sorted(graph.rules_at(store), key=lambda rule: not isinstance(rule, Keep))
    return tuple(row for rule in rules for row in _rule_rows(graph, rule))


def _output_rows(graph: Graph, output: Output) -> tuple[_Row, ...]:
    return tuple(_Row("results", edge) for edge in graph.incoming(output))


def _rule_rows(graph: Graph, rule: Rule) -> Iterable[_Row]:
    """Yield the row of what comes in, and one for each edge that goes out; one row does for both where they are opposite."""
    comes = graph.edge(rule.edge)
    sends = [] if isinstance(rule, Keep) else [graph.edge(label) for label in rule.sends]
    if _is_back(comes) or not sends:
        yield _Row(told(rule), comes, comes_right=_is_back(comes))
    else:
        yield _Row(told(rule), comes, sends.pop(0))
    for edge in sends:
        yield _Row(goes=edge)


def _stacked(boxes: Sequence[_Box], top: float) -> list[_Box]:
    """Put boxes below one another."""
    found: list[_Box] = []
    for box in boxes:
        at = found[-1].top + found[-1].height + _ROW if found else top
        found.append(_Box(box.node, box.name, box.rows, at))
    return found


def _beside(boxes: Sequence[_Box], stores: Sequence[_Box]) -> list[_Box]:
    """Put boxes beside the stores they are connected with, and where they do not overlap."""
    begins, ends = _heights(stores)
    found: list[_Box] = []
    for box in boxes:
        goes = [ends[row.goes.label] - _ROW * (index + 1.5) for index, row in enumerate(box.rows) if row.goes]
        comes = [height for row in box.rows if row.comes for height in begins[row.comes.label]]
        wished = goes[0] if goes else sum(comes) / len(comes) - box.height / 2
        free = found[-1].top + found[-1].height + _ROW if found else _ROW / 2
        found.append(_Box(box.node, box.name, box.rows, max(free, _ROW * (round(wished / _ROW) - 0.5))))
    return found


def _heights(boxes: Iterable[_Box]) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
    """Return where edges begin and where they end, by label."""
    begins: dict[str, tuple[float, ...]] = {}
    ends: dict[str, float] = {}
    for box in boxes:
        for index, row in enumerate(box.rows):
            if row.goes:
                begins[row.goes.label] = (*begins.get(row.goes.label, ()), box.y(index))
            if row.comes:
                ends[row.comes.label] = box.y(index)
    return begins, ends


def _lanes(wires: Sequence[_Wire]) -> dict[_Wire, int]:
    """Return a lane for each wire, short wires first; wires of one lane do not meet."""
    taken: list[list[tuple[float, float]]] = []
    found: dict[_Wire, int] = {}
    for wire in sorted(wires, key=lambda one: (one.span[1] - one.span[0], one.span, one.edge.label)):
        low, high = wire.span
        fits = (n for n, spans in enumerate(taken) if all(high + _ROW / 2 < a or b < low - _ROW / 2 for a, b in spans))
        lane = next(fits, len(taken))
        taken[lane:] = taken[lane:] or [[]]
        taken[lane].append((low, high))
        found[wire] = lane
    return found


def _columns(
    inputs: Sequence[_Box],
    stores: Sequence[_Box],
    outputs: Sequence[_Box],
    into: dict[_Wire, int],
    out_of: dict[_Wire, int],
) -> _Columns:
    input_right = _PAD + _box_width(inputs)
    lanes_in = input_right + _PAD
    store_left = lanes_in + _LANE * _count(into) + _labels_width(into)
    store_right = store_left + _box_width(stores)
    lanes_out = store_right + _labels_width(wire for wire in out_of if wire.back)
    output_left = lanes_out + _LANE * _count(out_of) + _labels_width(wire for wire in out_of if not wire.back)
    return _Columns(
        (_PAD, input_right), lanes_in, (store_left, store_right), lanes_out, (output_left, output_left + _box_width(outputs))
    )


def _count(lanes: dict[_Wire, int]) -> int:
    return max(lanes.values(), default=-1) + 1


def _box_width(boxes: Iterable[_Box]) -> float:
    says = [len(box.name) + 1 for box in boxes] + [len(_short(row.says)) + 6 for box in boxes for row in box.rows]
    return _CHARACTER * max(says, default=0) + 2 * _PAD


def _labels_width(wires: Iterable[_Wire]) -> float:
    return _CHARACTER * max((len(_label(wire.edge)) for wire in wires), default=0) + 2 * _PAD


def _label(edge: Edge) -> str:
    return _short(f"{edge.label} {edge.rows}" + ("" if edge.by is None else f" by {edge.by}"))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _drawn_box(box: _Box, column: tuple[float, float]) -> str:
    left, width = column[0], column[1] - column[0]
    parts = [
        f'<rect class="box" x="{left:g}" y="{box.top:g}" width="{width:g}" height="{box.height:g}" rx="5"/>',
        f'<path class="head" d="{_head(left, box.top, width)}"/>',
        _text(left + _PAD, box.top + _ROW / 2 + 4, box.name, "name"),
    ]
    for index, row in enumerate(box.rows):
        at = box.y(index) + 4
        if row.says:
            parts.append(_text(left + _PAD, at, row.says))
        label = row.goes.label if row.goes else row.comes.label if row.comes and row.comes_right else ""
        if label:
            parts.append(_text(column[1] - 7, at, label, "quiet", "end"))
    return "".join(parts)


def _head(left: float, top: float, width: float) -> str:
    corner, below = left + 1, top + _ROW - 1
    return f"M{corner:g} {below:g}v{-(_ROW - 6):g}q0-4 4-4h{width - 10:g}q4 0 4 4v{_ROW - 6:g}z"


def _drawn_wire(wire: _Wire, lane: int, columns: _Columns) -> str:
    """Draw a wire: out of its box, up or down its lane, to its end, with a tip there and the label above."""
    from_input = not isinstance(wire.edge.source, Store)
    start = columns.inputs[1] if from_input else columns.stores[1]
    end = columns.stores[0] if from_input else columns.stores[1] if wire.back else columns.outputs[0]
    middle = (columns.lanes_in if from_input else columns.lanes_out) + _LANE * (lane + 0.5)
    style = wire.edge.kind.replace(" ", "-")
    facing = -1 if wire.back else 1
    title = f"{wire.edge.label}: {wire.edge.rows}, {wire.edge.way}, {wire.edge.source} → {wire.edge.target}"
    thin = " there" if wire.edge.is_there else ""
    parts = [f'<path class="wire {style}{thin}" d="{path}"/>' for path in _paths(wire, start, middle, end - facing * 6)]
    parts += [f'<circle class="tip-{style}" cx="{middle:g}" cy="{y:g}" r="2.6"/>' for y in _junctions(wire)]
    parts.append(f'<path class="tip-{style}" d="M{end:g} {wire.ends:g}l{-facing * 8} -4v8z"/>')
    parts.append(_text(end - facing * 10, wire.ends - 4, _label(wire.edge), anchor="start" if wire.back else "end"))
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def _paths(wire: _Wire, start: float, middle: float, end: float) -> list[str]:
    """Return the line from where a wire begins over its lane to its end; one that comes from the other side joins it there.

    Where a wire begins on the way, it meets its own lane. Nothing is drawn twice: dashes would fill one another's gaps.
    """
    facing = 1 if end > middle else -1
    turning = [y for y in wire.begins if y in wire.span]
    ends = [end, *[middle + facing * 5] * (len(turning) - 1)]
    paths = [_cornered(start, y, middle, wire.ends, x) for y, x in zip(turning, ends, strict=True)]
    return paths + [f"M{start:g} {y:g}H{middle:g}" for y in _junctions(wire)]


def _junctions(wire: _Wire) -> list[float]:
    return [y for y in wire.begins if y not in wire.span]


def _cornered(start: float, begins: float, middle: float, ends: float, end: float) -> str:
    """Return the line from start over the lane to the end, with round corners. Heights differ: rows are half a row apart."""
    down, facing = 1 if ends > begins else -1, 1 if end > middle else -1
    return (
        f"M{start:g} {begins:g}H{middle - 5:g}Q{middle:g} {begins:g} {middle:g} {begins + down * 5:g}"
        f"V{ends - down * 5:g}Q{middle:g} {ends:g} {middle + facing * 5:g} {ends:g}H{end:g}"
    )


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    short = _short(text)
    title = "" if short == text else f"<title>{escape(text)}</title>"
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{title}{escape(short)}</text>'


def _legend(top: float) -> tuple[str, float]:
    """Return what kinds of edges mean, and how far it reaches."""
    parts, x = [], _PAD
    for kind, meaning in _MEANING.items():
        style = kind.replace(" ", "-")
        parts.append(
            f'<path class="wire {style}" d="M{x:g} {top:g}h30"/><path class="tip-{style}" d="M{x + 38:g} {top:g}l-8 -4v8z"/>'
        )
        text = f"{kind}: {meaning}"
        parts.append(_text(x + 46, top + 4, text))
        x += 46 + _CHARACTER * len(text) + 2 * _PAD
    parts.append(_text(x, top + 4, _THIN))
    return "".join(parts), x + _CHARACTER * len(_THIN) + 2 * _PAD


def _page(parts: Sequence[str], width: float, bottom: float) -> str:
    legend, legend_right = _legend(bottom)
    wide, high = round(max(width, legend_right)), round(bottom + _ROW)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hr-graph" role="img" aria-label="physical graph" '
        f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"><style>{_STYLE}</style>'
        f'<rect class="paper" width="{wide}" height="{high}"/>{"".join(parts)}{legend}</svg>\n'
    )

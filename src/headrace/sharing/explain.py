"""EXPLAIN of sharing, as text: each shared operator, what it works on, and which queries use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.model.expression import Column, Expression, columns, substitute
from headrace.model.window import SessionGap, Sliding
from headrace.plan.join import JoinQuery, owner
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.plan.multiway import MultiwayQuery
from headrace.sharing.grouping import costs
from headrace.sharing.join_order import JoinStatistics, Work, cost
from headrace.sharing.joining import Leaf, Step, chains
from headrace.sharing.multiway.explained import explained
from headrace.sharing.multiway.probes import ProbePlan
from headrace.sharing.selection import Dimension, Layout, Selection
from headrace.sharing.shared_plan import Buckets, LiveQuery, Operator, Router, Sessions, Store, StreamPlan
from headrace.sharing.statistics import Statistics, load
from headrace.sharing.wording import listed, plural, users


def explain(
    live: Sequence[LiveQuery],
    plans: Iterable[StreamPlan],
    joins: JoinStatistics | None = None,
    probes: ProbePlan | None = None,
) -> str:
    """Return the text; the same plans and statistics always give the same text."""
    names = {query.id: query.name for query in live}
    asked = sum(not query.feeds for query in live)
    lines = [f"{asked} live {plural('query', asked)}, one shared pipeline"]
    for plan in sorted(plans, key=lambda p: (p.stream.startswith("~"), p.stream)):
        reading = {m.query for m in plan.members} | {query.id for query in live if _trails(query.plan, plan.stream)}
        readers, columns = f"{len(reading)} {plural('query', len(reading))}", listed(sorted(plan.columns))
        lines += ["", f"stream {plan.stream}{_made(plan.stream, live)}: read once for {readers}; columns {columns}"]
        for operator in plan.operators:
            lines += [f"  {line}" for line in operator_lines(operator, names, plan.stats)]
        for buckets in plan.buckets:
            lines += [f"  {line}" for line in bucket_lines(buckets, names)]
    lines += _chains(live, names, joins or JoinStatistics())
    lines += explained(probes)
    return "\n".join(lines) + "\n"


def _trails(plan: LogicalQuery, stream: str) -> bool:
    """Tell whether a query joins a stream in SLIDING windows."""
    return isinstance(plan, MultiwayQuery) and stream in plan.streams


def _made(stream: str, live: Sequence[LiveQuery]) -> str:
    makers = [query for query in live if query.feeds == stream]
    if makers:
        return f" (results of {listed([query.name for query in makers])}: {_described(makers[0].plan)})"
    made = next((one for query in live for one in query.unfolded if one.name == stream), None)
    return "" if made is None else f" (elements of {made.values} in {made.base})"


def bucket_lines(buckets: Buckets, names: Mapping[int, str]) -> list[str]:
    """Return what is said of rows that are kept for joins."""
    windows = sorted({m.window for m in buckets.members if isinstance(m.window, Sliding)}, key=lambda w: (w.size, w.slide))
    distinct = len({m.predicate for m in buckets.members})
    return [
        f"buckets {_by(buckets.keys)} · used by {_users(buckets, names)}",
        f"  selection: {distinct} distinct {plural('predicate', distinct)} → a query-set for each row",
        f"  slices: edges of {listed([str(w) for w in windows])}",
        f"  keeps of each row: {listed(list(buckets.columns))}",
    ]


def _chains(live: Sequence[LiveQuery], names: Mapping[int, str], statistics: JoinStatistics) -> list[str]:
    """Show the steps of all joins as a tree: queries that begin alike, in one group, share steps."""
    paths: dict[tuple[Leaf | Step, ...], list[LiveQuery]] = {}
    for query in live:
        if isinstance(query.plan, JoinQuery):
            chain = chains(query.plan, query.arrangements)[-1][2]
            whole: tuple[Leaf | Step, ...] = (chain.first, *chain.steps)
            for depth in range(1, len(whole) + 1):
                paths.setdefault(whole[:depth], []).append(query)
    lines = ["", "joins"] if paths else []
    for path in sorted(paths, key=lambda p: [str(one) for one in p]):
        using = users([names.get(query.id, str(query.id)) for query in paths[path]])
        text = f"{'  ' * len(path)}{_step(path)} · used by {using}"
        lines.append(text + _estimate(path, paths[path], statistics) + _measured(path, paths[path], statistics))
    return lines


def _estimate(path: tuple[Leaf | Step, ...], queries: Sequence[LiveQuery], statistics: JoinStatistics) -> str:
    """Say what the model expects of one window, from what was measured or, before that, guessed."""
    plan = queries[0].plan
    assert isinstance(plan, JoinQuery)
    work = Work.of(plan, frozenset(query.bit for query in queries), statistics)
    order = [(one if isinstance(one, Leaf) else one.leaf).input for one in path]
    if len(order) == 1:
        return f" · about {work.rows[order[0]]:,.0f} rows a window (model)"
    return f" · about {work.cardinality(frozenset(order)):,.0f} rows a window, cost {cost(work, order):,.0f} (model)"


def _measured(path: tuple[Leaf | Step, ...], queries: Sequence[LiveQuery], statistics: JoinStatistics) -> str:
    """Say what the last window had of it."""
    found = [statistics.measured[query.id, len(path)] for query in queries if (query.id, len(path)) in statistics.measured]
    return f", {max(found):,.0f} measured" if found else ""


def _step(path: tuple[Leaf | Step, ...]) -> str:
    leaves = [one if isinstance(one, Leaf) else one.leaf for one in path]
    called = {leaf.input: leaf.stream if not leaf.slot else f"{leaf.stream}#{leaf.slot + 1}" for leaf in leaves}
    one = path[-1]
    if isinstance(one, Leaf):
        group = f", group {one.group}" if one.group else ""
        return f"{called[one.input]} {_by(one.keys)}{group}"
    if not one.left_keys:
        moves = " (rows move to one partition)" if one.moves else ""
        return f"{one.kind.value} join with {called[one.leaf.input]} without an equality{moves}"
    right = [f"{called[one.leaf.input]}.{key}" for key in one.leaf.keys]
    keys = " and ".join(f"{_named(left, called)} = {key}" for left, key in zip(one.left_keys, right, strict=True))
    moves = " (rows move to other partitions)" if one.moves else ""
    return f"{one.kind.value} join with {called[one.leaf.input]} on {keys}{moves}"


def _by(keys: Sequence[Expression]) -> str:
    return f"by {listed([str(key) for key in keys])}" if keys else "in one partition"


def _named(expression: Expression, called: Mapping[int, str]) -> str:
    """Return an expression over joined columns with the names of streams instead of numbers."""
    replaced = {name: Column(f"{called[owner(name)[0]]}.{owner(name)[1]}", expression.type) for name in columns(expression)}
    return str(substitute(expression, replaced))


def operator_lines(operator: Operator, names: Mapping[int, str], stats: Statistics) -> list[str]:
    """Return what is said of an operator: what it does and for whom, and below it how."""
    lines = [f"{_kind(operator)} · used by {_users(operator, names)}"]
    lines += [f"  {line}" for line in _selection(operator.selection)]
    if isinstance(operator, Store):
        windows = sorted({m.window for m in operator.members if isinstance(m.window, Sliding)}, key=lambda w: (w.size, w.slide))
        lines.append(f"  slices: edges of {listed([str(w) for w in windows])}")
        lines.append(f"  keeps per slice, key and cell: {listed([str(c) for c in operator.components])}")
    lines.append(f"  cost: {_saving(operator, stats)}")
    return lines


def _kind(operator: Operator) -> str:
    keys = f"by {listed([str(k) for k in operator.keys])}" if operator.keys else "over all rows"
    if isinstance(operator, Store):
        return f"aggregation {keys}"
    if isinstance(operator, Sessions):
        gaps = sorted({m.window.gap for m in operator.members if isinstance(m.window, SessionGap)})
        return f"sessions {keys}, {listed([str(SessionGap(gap)) for gap in gaps])}"
    assert isinstance(operator, Router)
    return "routing of rows"


def _selection(selection: Selection) -> list[str]:
    count = len(selection.predicates)
    predicates = f"{count} distinct {plural('predicate', count)}"
    if not selection.dimensions:
        return ["selection: every row"]
    if selection.layout is Layout.PER_QUERY:
        return [f"selection: {predicates}, each evaluated once"]
    form = {Layout.GRID: "segments" if len(selection.dimensions) == 1 else "grid", Layout.SIGNATURES: "signatures"}[
        selection.layout
    ]
    return [
        f"selection: {predicates} → {form} of {selection.size} cells over {listed([_dimension(d) for d in selection.dimensions])}"
    ]


def _dimension(dimension: Dimension) -> str:
    name: Expression = dimension.expression
    if dimension.boundaries is None:
        return f"[{name}]"
    return f"{name} ({len(dimension.boundaries) + 1} segments)"


def _saving(operator: Operator, stats: Statistics) -> str:
    """Compare the model's cost of the shared selection with that of every query by itself, at the rate known when planned."""
    here, alone = shared_cost(operator, stats), sum(alone_costs(operator, stats))
    return f"{here:.0f} ns a row, {alone:.0f} ns if every query worked alone (model)"


def shared_cost(operator: Operator, stats: Statistics) -> float:
    """Return what the model says an operator takes of each row, in nanoseconds."""
    work = load((m.window for m in operator.members), operator.keys, stats)
    return {c.layout: c.nanoseconds for c in costs(operator.selection.predicates, work)}[operator.selection.layout] / work.rows


def alone_costs(operator: Operator, stats: Statistics) -> list[float]:
    """Return what each of its members would take of each row if it worked alone, in nanoseconds."""
    rows = load((m.window for m in operator.members), operator.keys, stats).rows
    return [min(c.nanoseconds for c in costs([m.predicate], load([m.window], m.keys, stats))) / rows for m in operator.members]


def _users(operator: Operator | Buckets, names: Mapping[int, str]) -> str:
    return users(list(dict.fromkeys(names.get(m.query, str(m.query)) for m in operator.members)))


def _described(plan: LogicalQuery) -> str:
    if isinstance(plan, JoinQuery):
        windows = ", ".join(dict.fromkeys(str(each.window) for each in plan.inputs))
        return f"{'aggregation over a ' if plan.grouping else ''}join of {', '.join(plan.streams)} over {windows}"
    kind = f"aggregation over {plan.window}" if isinstance(plan, AggregateQuery) else "rows"
    return f"{kind} of {', '.join(plan.streams)}"

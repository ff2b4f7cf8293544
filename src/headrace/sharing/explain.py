"""EXPLAIN of the shared plan as text: each shared operator, its state, and the queries that use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.model.expression import Column, Expression, column_names, substitute_columns
from headrace.model.window import HopWindow, SessionWindow
from headrace.plan.join import WindowJoinQuery, split_joined_name
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.plan.multiway import SlidingJoinQuery
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
    """Return the text; equal plans and statistics give equal texts."""
    names = {query.id: query.name for query in live}
    query_count = sum(not query.feeds for query in live)
    lines = [f"{query_count} live {plural('query', query_count)}, one shared pipeline"]
    for plan in sorted(plans, key=lambda p: (p.stream.startswith("~"), p.stream)):
        reader_ids = {m.query for m in plan.members} | {query.id for query in live if _trails(query.plan, plan.stream)}
        readers, columns = f"{len(reader_ids)} {plural('query', len(reader_ids))}", listed(sorted(plan.columns))
        lines += ["", f"stream {plan.stream}{_made(plan.stream, live)}: read once for {readers}; columns {columns}"]
        for operator in plan.operators:
            lines += [f"  {line}" for line in operator_lines(operator, names, plan.stats)]
        for buckets in plan.buckets:
            lines += [f"  {line}" for line in bucket_lines(buckets, names)]
    lines += _chains(live, names, joins or JoinStatistics())
    lines += explained(probes)
    return "\n".join(lines) + "\n"


def _trails(plan: LogicalQuery, stream: str) -> bool:
    """Return whether a query joins a stream in SLIDING windows."""
    return isinstance(plan, SlidingJoinQuery) and stream in plan.streams


def _made(stream: str, live: Sequence[LiveQuery]) -> str:
    makers = [query for query in live if query.feeds == stream]
    if makers:
        return f" (results of {listed([query.name for query in makers])}: {_described(makers[0].plan)})"
    unnested = next((candidate for query in live for candidate in query.unfolded if candidate.name == stream), None)
    return "" if unnested is None else f" (elements of {unnested.list_expression} in {unnested.base})"


def bucket_lines(buckets: Buckets, names: Mapping[int, str]) -> list[str]:
    """Return the description of a join buffer."""
    windows = sorted({m.window for m in buckets.members if isinstance(m.window, HopWindow)}, key=lambda w: (w.size, w.slide))
    predicate_count = len({m.predicate for m in buckets.members})
    return [
        f"join buffer {_by(buckets.keys)} · used by {_users(buckets, names)}",
        f"  selection: {predicate_count} distinct {plural('predicate', predicate_count)} → a query-set for each row",
        f"  slices: edges of {listed([str(w) for w in windows])}",
        f"  buffered columns: {listed(list(buckets.columns))}",
    ]


def _chains(live: Sequence[LiveQuery], names: Mapping[int, str], statistics: JoinStatistics) -> list[str]:
    """Return the steps of all window joins as a tree: queries with a common prefix, in one group, share its steps."""
    paths: dict[tuple[Leaf | Step, ...], list[LiveQuery]] = {}
    for query in live:
        if isinstance(query.plan, WindowJoinQuery):
            chain = chains(query.plan, query.arrangements)[-1][2]
            full_path: tuple[Leaf | Step, ...] = (chain.first, *chain.steps)
            for depth in range(1, len(full_path) + 1):
                paths.setdefault(full_path[:depth], []).append(query)
    lines = ["", "joins"] if paths else []
    for path in sorted(paths, key=lambda p: [str(element) for element in p]):
        query_names = users([names.get(query.id, str(query.id)) for query in paths[path]])
        text = f"{'  ' * len(path)}{_step(path)} · used by {query_names}"
        lines.append(text + _estimate(path, paths[path], statistics) + _measured(path, paths[path], statistics))
    return lines


def _estimate(path: tuple[Leaf | Step, ...], queries: Sequence[LiveQuery], statistics: JoinStatistics) -> str:
    """Return the estimate of the model for one window, from measured statistics or, before these exist, from defaults."""
    plan = queries[0].plan
    assert isinstance(plan, WindowJoinQuery)
    work = Work.of(plan, frozenset(query.bit for query in queries), statistics)
    order = [(element if isinstance(element, Leaf) else element.leaf).input for element in path]
    if len(order) == 1:
        return f" · about {work.rows[order[0]]:,.0f} rows per window (model)"
    return f" · about {work.cardinality(frozenset(order)):,.0f} rows per window, cost {cost(work, order):,.0f} (model)"


def _measured(path: tuple[Leaf | Step, ...], queries: Sequence[LiveQuery], statistics: JoinStatistics) -> str:
    """Return the number of rows measured in the last window."""
    row_counts = [statistics.measured[query.id, len(path)] for query in queries if (query.id, len(path)) in statistics.measured]
    return f", {max(row_counts):,.0f} measured" if row_counts else ""


def _step(path: tuple[Leaf | Step, ...]) -> str:
    leaves = [element if isinstance(element, Leaf) else element.leaf for element in path]
    stream_names = {leaf.input: leaf.stream if not leaf.slot else f"{leaf.stream}#{leaf.slot + 1}" for leaf in leaves}
    last = path[-1]
    if isinstance(last, Leaf):
        group = f", group {last.group}" if last.group else ""
        return f"{stream_names[last.input]} {_by(last.keys)}{group}"
    if not last.left_keys:
        moves = " (repartitioned to one partition)" if last.moves else ""
        return f"{last.kind.value} join with {stream_names[last.leaf.input]} without an equality{moves}"
    right = [f"{stream_names[last.leaf.input]}.{key}" for key in last.leaf.keys]
    keys = " and ".join(f"{_named(left, stream_names)} = {key}" for left, key in zip(last.left_keys, right, strict=True))
    moves = " (repartitioned)" if last.moves else ""
    return f"{last.kind.value} join with {stream_names[last.leaf.input]} on {keys}{moves}"


def _by(keys: Sequence[Expression]) -> str:
    return f"by {listed([str(key) for key in keys])}" if keys else "in one partition"


def _named(expression: Expression, stream_names: Mapping[int, str]) -> str:
    """Return an expression over joined columns with stream names instead of input numbers."""
    qualified = {
        name: Column(f"{stream_names[split_joined_name(name)[0]]}.{split_joined_name(name)[1]}", expression.type)
        for name in column_names(expression)
    }
    return str(substitute_columns(expression, qualified))


def operator_lines(operator: Operator, names: Mapping[int, str], stats: Statistics) -> list[str]:
    """Return the description of an operator: its kind and users, then selection, state and cost."""
    lines = [f"{_kind(operator)} · used by {_users(operator, names)}"]
    lines += [f"  {line}" for line in _selection(operator.selection)]
    if isinstance(operator, Store):
        windows = sorted({m.window for m in operator.members if isinstance(m.window, HopWindow)}, key=lambda w: (w.size, w.slide))
        lines.append(f"  slices: edges of {listed([str(w) for w in windows])}")
        lines.append(f"  partial aggregates per slice, key and cell: {listed([str(c) for c in operator.components])}")
    lines.append(f"  cost: {_saving(operator, stats)}")
    return lines


def _kind(operator: Operator) -> str:
    keys = f"by {listed([str(k) for k in operator.keys])}" if operator.keys else "over all rows"
    if isinstance(operator, Store):
        return f"aggregation {keys}"
    if isinstance(operator, Sessions):
        gaps = sorted({m.window.gap for m in operator.members if isinstance(m.window, SessionWindow)})
        return f"sessions {keys}, {listed([str(SessionWindow(gap)) for gap in gaps])}"
    assert isinstance(operator, Router)
    return "stateless routing"


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
    """Compare the cost of the shared selection with the sum of standalone costs, at the rate known during planning."""
    shared, standalone = shared_cost(operator, stats), sum(alone_costs(operator, stats))
    return f"{shared:.0f} ns/row shared, {standalone:.0f} ns/row standalone (model)"


def shared_cost(operator: Operator, stats: Statistics) -> float:
    """Return the model's cost of an operator per row, in nanoseconds."""
    operator_load = load((m.window for m in operator.members), operator.keys, stats)
    return {c.layout: c.nanoseconds for c in costs(operator.selection.predicates, operator_load)}[
        operator.selection.layout
    ] / operator_load.rows


def alone_costs(operator: Operator, stats: Statistics) -> list[float]:
    """Return the standalone cost per row of each subscriber, in nanoseconds."""
    rows = load((m.window for m in operator.members), operator.keys, stats).rows
    return [min(c.nanoseconds for c in costs([m.predicate], load([m.window], m.keys, stats))) / rows for m in operator.members]


def _users(operator: Operator | Buckets, names: Mapping[int, str]) -> str:
    return users(list(dict.fromkeys(names.get(m.query, str(m.query)) for m in operator.members)))


def _described(plan: LogicalQuery) -> str:
    if isinstance(plan, WindowJoinQuery):
        windows = ", ".join(dict.fromkeys(str(join_input.window) for join_input in plan.inputs))
        return f"{'aggregation over a ' if plan.grouping else ''}join of {', '.join(plan.streams)} over {windows}"
    kind = f"aggregation over {plan.window}" if isinstance(plan, AggregateQuery) else "rows"
    return f"{kind} of {', '.join(plan.streams)}"

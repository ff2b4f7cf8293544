"""EXPLAIN of joins in TUMBLE and HOP windows: the steps that queries share, what they cost, and why queries join apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from headrace.model.expression import Column, Expression, column_names, substitute_columns
from headrace.plan.window_join import split_joined_name
from headrace.planner.explain.plan_graph import format_list, format_partition_keys, format_users
from headrace.planner.join.window_join_cost import JoinStatistics, SelectedRows, StepLoads, Subjoin, merge_loads, merge_rows
from headrace.planner.join.window_join_groups import JoiningQuery, SharedJoins, SharedStep
from headrace.planner.join.window_join_plan import JoinPath, StepExchange, WindowJoinLeaf, build_chains
from headrace.planner.join.window_join_replanning import list_joining_queries, share_steps
from headrace.planner.shared_plan import LiveQuery

_SHOWN_REASONS = 20
_NANOS_PER_MILLI = 1e6
_EXCHANGES = {
    StepExchange.COPY_LEAF: "{} copied to all partitions",
    StepExchange.COPY_ROWS: "joined rows copied to all partitions",
    StepExchange.GATHER: "in one partition",
}


def explain_window_joins(live: Sequence[LiveQuery], names: Mapping[int, str], statistics: JoinStatistics) -> list[str]:
    """Return the steps of all window joins as a tree, then why queries with equal joins do not share them."""
    queries = {query.id: query for query in list_joining_queries(live, statistics)}
    joins = share_steps(queries.values())
    paths: dict[JoinPath, list[int]] = {}
    for query in live:
        if query.id in queries:
            path = build_chains(queries[query.id].plan, query.order_versions)[-1][2].path
            for depth in range(1, len(path) + 1):
                paths.setdefault(path[:depth], []).append(query.id)
    lines = ["", "joins"] if paths else []
    for path in sorted(paths, key=lambda p: [str(element) for element in p]):
        users = paths[path]
        text = f"{'  ' * len(path)}{_format_element(path)} · used by {_format_names(users, names)}"
        lines.append(text + _format_figures(len(path), users, queries[users[0]], joins, statistics))
    reasons = [*_explain_groups(joins, names), *_explain_orders(joins, list(queries.values()), names)]
    lines += [f"  apart: {reason}" for reason in reasons[:_SHOWN_REASONS]]
    return lines if len(reasons) <= _SHOWN_REASONS else [*lines, f"  … and {len(reasons) - _SHOWN_REASONS} more"]


def _format_names(query_ids: Sequence[int], names: Mapping[int, str]) -> str:
    return format_users([names.get(number, str(number)) for number in query_ids])


def _list_names(query_ids: Iterable[int], names: Mapping[int, str]) -> str:
    return format_list([names.get(number, str(number)) for number in sorted(query_ids)])


def _format_figures(
    length: int, users: Sequence[int], query: JoiningQuery, joins: SharedJoins, statistics: JoinStatistics
) -> str:
    """Return the estimate of the model, from measured statistics or, before these exist, from defaults, and what was measured."""
    order, groups = joins.places[query.id]
    prefix = query.template.get_prefix(order[: max(2, length)])
    step = joins.steps[prefix.path_id, groups[max(0, length - 2)]]
    measured = [statistics.measured_rows[number, length] for number in users if (number, length) in statistics.measured_rows]
    if length == 1:
        text = f" · about {prefix.count_rows(0, step.loads):,.0f} rows per window (model)"
        return text + (f", {max(measured):,.0f} measured" if measured else "")
    text = f" · about {prefix.estimate_rows(step.loads):,.0f} rows per window, cost {_format_cost(step.cost)} (model)"
    if measured:
        cost = prefix.estimate_work(step.loads, found=max(measured)).nanoseconds
        text += f", {max(measured):,.0f} rows measured, cost {_format_cost(cost)} with these"
    return text


def _format_cost(nanoseconds: float) -> str:
    return f"{nanoseconds / _NANOS_PER_MILLI:,.3g} ms/s"


def _explain_groups(joins: SharedJoins, names: Mapping[int, str]) -> Iterator[str]:
    """Yield why queries with an equal step, after the same steps, are in different groups."""
    for keys in joins.list_alternatives():
        for first, second in combinations(keys, 2):
            one, other = joins.steps[first], joins.steps[second]
            together = one.prefix.estimate_work(merge_loads(one.loads, other.loads)).nanoseconds
            streams = " and ".join(stream for stream, _ in _list_inputs(one))
            yield (
                f"{_list_names(one.loads_by_query, names)} | {_list_names(other.loads_by_query, names)}: "
                f"they join {streams} in groups of their own, with {_describe_overlap(one, other)} in common; together "
                f"{_format_cost(together)}, apart {_format_cost(one.cost + other.cost)} (model)"
            )


def _list_inputs(step: SharedStep) -> list[tuple[str, int]]:
    leaves = [step.prefix.chain.first_leaf, *(each.leaf for each in step.prefix.chain.steps)]
    return [(leaf.stream, leaf.slot) for leaf in leaves if leaf is not None]


def _describe_overlap(one: SharedStep, other: SharedStep) -> str:
    """Return the share of rows in common, of the input where it is least."""

    def collect(loads: StepLoads, position: int) -> SelectedRows:
        return merge_rows(load.rows[position] for load in loads.values())

    overlaps = []
    for position, (stream, _) in enumerate(_list_inputs(one)):
        first, second = collect(one.loads, position), collect(other.loads, position)
        either = first.merge(second).share
        overlaps.append(((first.share + second.share - either) / either, stream))
    share, stream = min(overlaps)
    return f"{max(0.0, share):.0%} of the rows of {stream}"


def _explain_orders(joins: SharedJoins, queries: Sequence[JoiningQuery], names: Mapping[int, str]) -> Iterator[str]:
    """Yield which queries have the join of two inputs in common with others, but not at the beginning of their order."""
    beginning: dict[Subjoin, list[int]] = {}
    inside: dict[Subjoin, dict[str, list[int]]] = {}
    for query in queries:
        order, template = joins.places[query.id][0], query.template
        for pair in combinations(range(len(order)), 2):
            among = frozenset(pair)
            subjoin: Subjoin = template.find_subjoin(among)
            if not subjoin.equalities:
                continue
            if among == frozenset(order[:2]):
                beginning.setdefault(subjoin, []).append(query.id)
            else:
                inputs = " and ".join(template.inputs[index][0] for index in pair)
                text = f"join {inputs}, too, but begin with {template.inputs[order[0]][0]} and {template.inputs[order[1]][0]}"
                inside.setdefault(subjoin, {}).setdefault(text, []).append(query.id)
    for subjoin, users in beginning.items():
        for text, others in inside.get(subjoin, {}).items():
            yield f"{_list_names(users, names)} | {_list_names(others, names)}: the latter {text}"


def _format_element(path: JoinPath) -> str:
    """Return the description of the last element of a path."""
    leaves = [element if isinstance(element, WindowJoinLeaf) else element.leaf for element in path]
    stream_names = {leaf.input_index: leaf.stream if not leaf.slot else f"{leaf.stream}#{leaf.slot + 1}" for leaf in leaves}
    last = path[-1]
    if isinstance(last, WindowJoinLeaf):
        return f"{stream_names[last.input_index]} {format_partition_keys(last.keys)}{_format_group(last)}"
    name, group = stream_names[last.leaf.input_index], _format_group(last.leaf)
    if not last.left_keys:
        return f"{last.kind.value} join with {name} without an equality ({_EXCHANGES[last.exchange].format(name)}){group}"
    right = [f"{name}.{key}" for key in last.leaf.keys]
    keys = " and ".join(
        f"{_qualify_columns(left, stream_names)} = {key}" for left, key in zip(last.left_keys, right, strict=True)
    )
    moves = " (repartitioned)" if last.repartitions else ""
    return f"{last.kind.value} join with {name} on {keys}{moves}{group}"


def _format_group(leaf: WindowJoinLeaf) -> str:
    return f", group {leaf.group}" if leaf.group else ""


def _qualify_columns(expression: Expression, stream_names: Mapping[int, str]) -> str:
    """Return an expression over joined columns with stream names instead of input numbers."""
    qualified = {
        name: Column(f"{stream_names[split_joined_name(name)[0]]}.{split_joined_name(name)[1]}", expression.type)
        for name in column_names(expression)
    }
    return str(substitute_columns(expression, qualified))

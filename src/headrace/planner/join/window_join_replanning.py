"""Planning of window joins again: new orders and groups for queries, where they cost enough less than the current ones.

Few changed queries are placed beside all others, which stay as they are: incremental planning. Where many changed, orders and
groups of all queries are searched together, because what is best for each beside the others may be far from what is best for all.
Either way a place changes only for a gain, so that plans do not oscillate with the statistics. Pure: statistics in, plan out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.window_join_options import WindowJoinOptions
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.join.window_join_cost import JoinStatistics, JoinTemplate, PathIds, SelectedRows, merge_rows
from headrace.planner.join.window_join_groups import JoiningQuery, JoinPlace, Order, PlanningEffort, SharedJoins
from headrace.planner.join.window_join_order import (
    QueryClass,
    choose_common_orders,
    choose_own_orders,
    find_best_order,
)
from headrace.planner.join.window_join_plan import JoinOrderVersion, get_written_order, is_reorderable, iter_conditions
from headrace.planner.shared_plan import LiveQuery

DEFAULT_OPTIONS = WindowJoinOptions()
_NOISE = 0.02  # shares of rows below this count as equal: a sample has some hundred rows
_MAX_ORDERS = 8  # orders of other queries that are tried for a query


@dataclass(frozen=True, slots=True)
class JoinReplanning:
    """New join order versions by query, the number of steps that were estimated, and whether all were planned together."""

    changed: Mapping[int, JoinOrderVersion] = field(default_factory=dict)
    steps: int = 0
    is_full: bool = False


def list_joining_queries(queries: Iterable[LiveQuery], statistics: JoinStatistics) -> list[JoiningQuery]:
    """Return the queries with joins in TUMBLE and HOP windows, by id; outer joins keep their order, but not their groups."""
    templates: dict[object, JoinTemplate] = {}
    paths, joining = PathIds(), []
    for query in sorted(queries, key=lambda q: q.id):
        plan = query.plan
        if not isinstance(plan, WindowJoinQuery):
            continue
        conditions = tuple(iter_conditions(plan)) if is_reorderable(plan) else plan.tree
        key = tuple((source.stream, source.window) for source in plan.inputs), conditions
        template = templates.get(key)
        if template is None:
            template = templates[key] = JoinTemplate.of(plan, statistics, paths)
        versions = query.order_versions or (JoinOrderVersion(get_written_order(plan)),)
        place = versions[-1].order, versions[-1].step_groups
        joining.append(JoiningQuery(query.id, plan, template, template.find_rows(query.bit), *place, not query.order_versions))
    return joining


def replan_joins(
    queries: Iterable[LiveQuery],
    statistics: JoinStatistics,
    changed: frozenset[int] | None = None,
    options: WindowJoinOptions = DEFAULT_OPTIONS,
) -> JoinReplanning:
    """Return new orders and groups for the `changed` queries beside all others, or for all queries together if that is None."""
    joining = list_joining_queries(queries, statistics)
    if not joining or not (options.grouping or options.reordering):
        return JoinReplanning()
    return _Replanning.of(joining, options).run(changed)


@dataclass(frozen=True, slots=True, eq=False)
class _Replanning:
    queries: Sequence[JoiningQuery]
    options: WindowJoinOptions
    effort: PlanningEffort
    current: SharedJoins

    @staticmethod
    def of(queries: Sequence[JoiningQuery], options: WindowJoinOptions) -> _Replanning:
        effort = PlanningEffort(options.planning_steps)
        current = SharedJoins(effort, options.grouping)
        for query in queries:
            current.add(query, query.order, query.groups)
        return _Replanning(queries, options, effort, current)

    def _make_joins(self) -> SharedJoins:
        return SharedJoins(self.effort, self.options.grouping)

    def run(self, changed: frozenset[int] | None) -> JoinReplanning:
        joins = self._plan_together() if changed is None else None
        if joins is None:
            for query_class in _classify(q for q in self.queries if changed is None or q.id in changed):
                if self.effort.is_exhausted:
                    break
                self._improve(query_class)
            joins = self.current
        places = {query: joins.places[query.id] for query in self.queries}
        versions = {
            query.id: JoinOrderVersion(order, groups[0], later_groups=groups[1:])
            for query, (order, groups) in places.items()
            if (order, groups) != (query.order, query.groups)
        }
        return JoinReplanning(versions, self.effort.steps, changed is None)

    def _plan_together(self) -> SharedJoins | None:
        """Return the cheapest plan of all queries from scratch; None unless it costs enough less than the current one."""
        best: SharedJoins | None = None
        tried: list[dict[int, Order]] = []
        for orders in self._propose_orders():
            if orders not in tried:
                tried.append(orders)
                joins = self._place_all(orders)
                if joins is not None and (best is None or joins.cost < best.cost):
                    best = joins
        if best is None:
            return None
        is_reordered = any(best.places[query.id][0] != query.order for query in self.queries)
        return best if self._is_gain(best.cost, self.current.cost, is_reordered=is_reordered) else None

    def _propose_orders(self) -> list[dict[int, Order]]:
        current = {query.id: query.order for query in self.queries}
        if not self.options.reordering:
            return [current]
        classes, block = _classify(self.queries), self.options.block_inputs
        proposals = [current]
        for choose in (choose_own_orders, choose_common_orders):
            chosen = choose(classes, block, self.effort)
            proposals.append(current | {query.id: order for c, order in chosen.items() for query in c.queries})
        return proposals

    def _place_all(self, orders: Mapping[int, Order]) -> SharedJoins | None:
        joins = self._make_joins()
        for query in self.queries:
            if self.effort.is_exhausted:
                return None
            place = joins.find_place(query, orders[query.id])
            joins.add(query, place.order, place.groups)
        return joins

    def _improve(self, query_class: QueryClass) -> None:
        """Give the queries of a class a cheaper place beside all others, if the gain is large enough."""
        joins, queries = self.current, query_class.queries
        before, places = joins.cost, {query: joins.places[query.id] for query in queries}
        joins.remove(queries)
        others = joins.cost
        best: dict[JoiningQuery, JoinPlace] | None = None
        best_cost = before - others
        for order in self._propose_orders_beside(query_class, places[queries[0]][0]):
            found = self._place_beside(queries, order)
            cost = joins.cost - others
            joins.remove(queries)
            is_reordered = any(order != places[query][0] for query in queries)
            if cost < best_cost and self._is_gain(cost, before - others, is_reordered=is_reordered):
                best, best_cost = found, cost
        for query in queries:
            joins.add(query, *(places[query] if best is None else (best[query].order, best[query].groups)))

    def _place_beside(self, queries: Sequence[JoiningQuery], order: Order) -> dict[JoiningQuery, JoinPlace]:
        found = {}
        for query in queries:
            place = found[query] = self.current.find_place(query, order)
            self.current.add(query, place.order, place.groups)
        return found

    def _propose_orders_beside(self, query_class: QueryClass, current: Order) -> list[Order]:
        """Return orders for a class: the current one, that of others with the same template, the best beside them, and alone."""
        if not self.options.reordering or not query_class.template.is_reorderable:
            return [current]
        template, block, effort = query_class.template, self.options.block_inputs, self.effort
        others = [self.current.places[q.id][0] for q in self.queries if q.template is template and q.id in self.current.places]
        orders = [current, *list(dict.fromkeys(others))[:_MAX_ORDERS]]
        orders.append(find_best_order(template, lambda p: self.current.estimate_step(p, query_class.make_load(p)), block))
        orders.append(find_best_order(template, query_class.charge_alone(effort), block))
        return list(dict.fromkeys(orders))

    def _is_gain(self, new: float, old: float, *, is_reordered: bool) -> bool:
        gain = self.options.order_gain if is_reordered else self.options.group_gain
        return new < (1 - gain) * old


def _classify(queries: Iterable[JoiningQuery]) -> list[QueryClass]:
    """Divide queries into classes: those of one template and order that select about as many rows of each input."""
    classes: dict[object, list[JoiningQuery]] = {}
    for query in queries:
        profile = tuple(round(rows.share * 1024).bit_length() // 2 for rows in query.rows)
        classes.setdefault((query.template, query.order, profile), []).append(query)
    return [QueryClass.of(members) for members in classes.values()]


def share_steps(queries: Iterable[JoiningQuery]) -> SharedJoins:
    """Return the steps of window joins in their current places, with the queries that share each."""
    joins = SharedJoins(PlanningEffort(0))
    for query in queries:
        joins.add(query, query.order, query.groups)
    return joins


JoinFigures = tuple[float, ...]


def summarize_statistics(queries: Iterable[LiveQuery], statistics: JoinStatistics) -> dict[int, JoinFigures]:
    """Return the figures of each query on which its plan depends: rows that it selects and shares with others, and pairs."""
    joining = list_joining_queries(queries, statistics)
    rows_of_input: dict[tuple[str, int], list[SelectedRows]] = {}
    for query in joining:
        for each, rows in zip(query.template.inputs, query.rows, strict=True):
            rows_of_input.setdefault(each, []).append(rows)
    merged = {each: merge_rows(rows) for each, rows in rows_of_input.items()}
    figures: dict[int, JoinFigures] = {}
    for query in joining:
        template, found = query.template, []
        everything = tuple(range(len(template.inputs)))
        for each, rate, rows in zip(template.inputs, template.rates, query.rows, strict=True):
            found += [rate * (rows.share + _NOISE), (merged[each].share + _NOISE) / (merged[each].total + _NOISE)]
        figures[query.id] = (*found, template.get_prefix(everything).reached_selectivity)
    return figures


def find_drifted(before: Mapping[int, JoinFigures], now: Mapping[int, JoinFigures], factor: float) -> frozenset[int]:
    """Return the queries of which a figure changed by more than a factor."""
    return frozenset(
        number
        for number, figures in now.items()
        if number in before and any(max(a, b) > factor * min(a, b) for a, b in zip(before[number], figures, strict=True))
    )

"""Query groups of window joins: the steps of all queries, and which queries share each (AJoin: query grouping).

A query may share the first steps of its chain with some queries, and continue apart from them. So groups are decided step by
step: below one shared step, queries whose next steps are equal are one group or several, whichever is cheaper. Together they
index and look up the rows that they have in common once; apart they do not compare rows that no query selects together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.join.window_join_cost import (
    JoinPrefix,
    JoinTemplate,
    SelectedRows,
    StepLoads,
    merge_loads,
    merge_rows,
)

_TRIED_GROUPS = 4  # groups whose cost with a query is estimated: those with most rows in common
_COMPARED_GROUPS = 64  # groups whose rows are compared with those of a query: the newest

Order = tuple[int, ...]
Groups = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanningEffort:
    """Counts the steps of joins whose cost was estimated; when the limit is reached, planning stops and keeps what there is."""

    limit: int
    _counted: list[int] = field(default_factory=lambda: [0])

    @property
    def steps(self) -> int:
        """The number of estimates so far."""
        return self._counted[0]

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit is reached."""
        return self.steps >= self.limit

    def estimate_cost(self, prefix: JoinPrefix, loads: StepLoads) -> float:
        """Return the cost of a step."""
        self._counted[0] += 1
        return prefix.estimate_work(loads).nanoseconds


@dataclass(frozen=True, slots=True, eq=False)
class JoiningQuery:
    """A query with a window join: its template, the rows that it selects, and its current place."""

    id: int
    plan: WindowJoinQuery
    template: JoinTemplate
    rows: tuple[SelectedRows, ...]
    order: Order
    groups: Groups
    is_new: bool = False  # it has never been planned


@dataclass(frozen=True, slots=True)
class JoinPlace:
    """An order and groups for a query, and what it adds to the cost of all queries there."""

    order: Order
    groups: Groups
    cost: float


@dataclass(frozen=True, slots=True)
class SharedStep:
    """A step, the loads of the queries that share it, and its cost."""

    prefix: JoinPrefix
    loads_by_query: dict[int, StepLoads]
    loads: StepLoads
    cost: float


StepKey = tuple[int, int]  # path and group: groups with equal numbers on one path have the same steps before


@dataclass(frozen=True, slots=True, eq=False)
class SharedJoins:
    """The steps of some queries under the places that they were given; queries are added and removed.

    If not `is_grouped`, equal steps are always shared.
    """

    effort: PlanningEffort
    is_grouped: bool = True
    steps: dict[StepKey, SharedStep] = field(default_factory=dict)
    places: dict[int, tuple[Order, Groups]] = field(default_factory=dict)
    _following: dict[tuple[StepKey | None, int], list[int]] = field(default_factory=dict)
    _groups_of_path: dict[int, set[int]] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """The cost of all steps."""
        return sum(step.cost for step in self.steps.values())

    def list_alternatives(self) -> list[list[StepKey]]:
        """Return the groups of each step that has several."""
        return [[(path_id, group) for group in groups] for (_, path_id), groups in self._following.items() if len(groups) > 1]

    def find_place(self, query: JoiningQuery, order: Order) -> JoinPlace:
        """Return the cheapest groups for a query under an order."""
        prefixes = query.template.list_prefixes(order)
        wanted = query.groups if order == query.order else ()
        best: JoinPlace | None = None
        for group, cost in self._try_groups(query, None, prefixes[0], wanted[:1]):
            groups, total = [group], cost
            for depth, prefix in enumerate(prefixes[1:], 1):
                parent = (prefixes[depth - 1].path_id, groups[-1])
                options = self._try_groups(query, parent, prefix, wanted[depth : depth + 1])
                chosen, added = min(options, key=lambda option: option[1])
                groups.append(chosen)
                total += added
            if best is None or total < best.cost:
                best = JoinPlace(order, tuple(groups), total)
        assert best is not None
        return best

    def _try_groups(
        self, query: JoiningQuery, parent: StepKey | None, prefix: JoinPrefix, wanted: Groups
    ) -> list[tuple[int, float]]:
        """Return groups for a step with what the query adds to the cost, existing groups first."""
        load = query.template.make_load(prefix, query.rows)
        known = self._following.get((parent, prefix.path_id), [])
        options = []
        for group in self._choose_similar(known, prefix.path_id, load):
            step = self.steps[prefix.path_id, group]
            options.append((group, self.effort.estimate_cost(step.prefix, merge_loads(step.loads, load)) - step.cost))
        if not options or self.is_grouped:
            options.append((self._number_group(prefix.path_id, wanted), self.effort.estimate_cost(prefix, load)))
        return options

    def _choose_similar(self, groups: Sequence[int], path_id: int, load: StepLoads) -> Sequence[int]:
        """Return the groups with most rows of the leaf in common with a query."""
        if len(groups) <= _TRIED_GROUPS:
            return groups
        rows = merge_rows(each.rows[-1] for each in load.values())

        def count_common(group: int) -> int:
            shared = merge_rows(each.rows[-1] for each in self.steps[path_id, group].loads.values())
            return (rows.selected & shared.selected).bit_count()

        return sorted(groups[-_COMPARED_GROUPS:], key=lambda group: (-count_common(group), group))[:_TRIED_GROUPS]

    def _number_group(self, path_id: int, wanted: Groups) -> int:
        used = self._groups_of_path.get(path_id, set())
        free = next(number for number in range(len(used) + 1) if number not in used)
        return wanted[0] if wanted and wanted[0] not in used else free

    def add(self, query: JoiningQuery, order: Order, groups: Groups) -> None:
        """Add a query at a place; groups whose numbers are taken by other steps get new ones."""
        parent: StepKey | None = None
        given: list[int] = []
        for prefix, wanted in zip(query.template.list_prefixes(order), groups, strict=True):
            following = self._following.setdefault((parent, prefix.path_id), [])
            group = wanted if wanted in following else self._number_group(prefix.path_id, (wanted,))
            if group not in following:
                following.append(group)
                self._groups_of_path.setdefault(prefix.path_id, set()).add(group)
            parent = (prefix.path_id, group)
            load, known = query.template.make_load(prefix, query.rows), self.steps.get(parent)
            if known is None:
                self.steps[parent] = SharedStep(prefix, {query.id: load}, load, self.effort.estimate_cost(prefix, load))
            else:
                known.loads_by_query[query.id], merged = load, merge_loads(known.loads, load)
                cost = self.effort.estimate_cost(known.prefix, merged)
                self.steps[parent] = replace(known, loads=merged, cost=cost)
            given.append(group)
        self.places[query.id] = order, tuple(given)

    def remove(self, queries: Iterable[JoiningQuery]) -> None:
        """Remove queries."""
        changed: dict[StepKey, StepKey | None] = {}
        for query in queries:
            order, groups = self.places.pop(query.id)
            parent: StepKey | None = None
            for prefix, group in zip(query.template.list_prefixes(order), groups, strict=True):
                key = (prefix.path_id, group)
                del self.steps[key].loads_by_query[query.id]
                changed[key] = parent
                parent = key
        for key, parent in changed.items():
            step = self.steps[key]
            if not step.loads_by_query:
                del self.steps[key]
                self._following[parent, key[0]].remove(key[1])
                self._groups_of_path[key[0]].discard(key[1])
                continue
            loads: StepLoads = {}
            for load in step.loads_by_query.values():
                loads = merge_loads(loads, load)
            self.steps[key] = replace(step, loads=loads, cost=self.effort.estimate_cost(step.prefix, loads))

    def estimate_step(self, prefix: JoinPrefix, load: StepLoads) -> float:
        """Return the least that a load adds to the cost of an equal step: shared with a group, or alone."""
        costs = [self.effort.estimate_cost(prefix, load)]
        groups = sorted(self._groups_of_path.get(prefix.path_id, ()))
        for group in self._choose_similar(groups, prefix.path_id, load):
            step = self.steps[prefix.path_id, group]
            costs.append(self.effort.estimate_cost(step.prefix, merge_loads(step.loads, load)) - step.cost)
        return min(costs)

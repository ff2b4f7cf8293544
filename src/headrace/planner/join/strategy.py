"""Strategies, the results of the optimizer: a probe order for every query and input, and the joins materialized for them.

Equal prefixes of orders are executed once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.planner.join.join_graph import Attribute, JoinGraph


@dataclass(frozen=True, slots=True)
class PartitionedStore:
    """A store of a relation: all its rows, partitioned by an attribute; without one, a row may lie in any partition."""

    relation: JoinGraph
    partitioned_by: Attribute | None = None

    def __str__(self) -> str:
        """Return the label of the store in drawings of probe trees."""
        return f"{self.relation}[{'' if self.partitioned_by is None else self.partitioned_by}]"


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """The stores that rows of an input visit, in order, until a join is complete."""

    start: str
    stores: tuple[PartitionedStore, ...]

    def __str__(self) -> str:
        """Return the order in angle brackets."""
        return f"⟨{', '.join([self.start, *map(str, self.stores)])}⟩"

    @property
    def covered_relations(self) -> frozenset[str]:
        """The inputs of the joined rows at the end of the order."""
        return frozenset({self.start}).union(*(store.relation.relations for store in self.stores))


@dataclass(frozen=True, slots=True)
class JoinProbePlan:
    """The plan of one join: a probe order for each of its inputs, by name."""

    join_graph: JoinGraph
    probe_orders: tuple[ProbeOrder, ...]

    def __post_init__(self) -> None:
        """Check that every input has one order that covers the complete join and visits no input twice."""
        if [order.start for order in self.probe_orders] != sorted(self.join_graph.relations):
            raise ValueError("a plan needs one probe order for each input of its join, in alphabetical order")
        for order in self.probe_orders:
            visited = 1 + sum(len(store.relation.relations) for store in order.stores)
            if order.covered_relations != self.join_graph.relations or visited != len(self.join_graph.relations):
                raise ValueError(f"the probe order {order} does not visit every other input of {self.join_graph} exactly once")

    @property
    def stores(self) -> tuple[PartitionedStore, ...]:
        """The visited stores, one entry for each visit."""
        return tuple(store for order in self.probe_orders for store in order.stores)

    def get_order(self, start: str) -> ProbeOrder:
        """Return the order of the rows of an input."""
        return next(order for order in self.probe_orders if order.start == start)


@dataclass(frozen=True, slots=True)
class SolverReport:
    """The report of the solver. `gap` is the largest fraction of the cost that a better solution might save; 1 if unknown.

    `status` is one of

    - "optimal": no solution is better by more than the gap;
    - "restricted": the same among the candidates, which are incomplete for large queries; the gap does not cover the others;
    - "time limit": the best solution found in time;
    - "greedy": no solution better than the greedy one was found in time, or none was searched for.
    """

    status: str
    gap: float
    seconds: float = 0.0
    variable_count: int = 0
    constraint_count: int = 0


@dataclass(frozen=True, slots=True)
class JoinStrategy:
    """Plans for all queries and for the joins materialized for them.

    `probe_cost` are the rows sent to probe, `storage_cost` the rows sent to be stored, with the weight of the optimizer; every
    step and store counts once, however many queries share it.
    """

    query_plans: tuple[JoinProbePlan, ...]
    materialized_plans: tuple[JoinProbePlan, ...]
    probe_cost: float
    storage_cost: float
    solver_report: SolverReport = field(compare=False)

    def __post_init__(self) -> None:
        """Check that every materialized join that is probed has a plan."""
        missing = {store.relation for store in self.stores if not store.relation.is_input} - {
            plan.join_graph for plan in self.materialized_plans
        }
        if missing:
            raise ValueError(f"no plan for the materialized join {', '.join(sorted(map(str, missing)))}, which is probed")

    @property
    def total_cost(self) -> float:
        """The objective: rows sent to probe or to be stored."""
        return self.probe_cost + self.storage_cost

    @property
    def stores(self) -> frozenset[PartitionedStore]:
        """All visited stores, which must be kept."""
        return frozenset(store for plan in (*self.query_plans, *self.materialized_plans) for store in plan.stores)

    def get_plan(self, join: JoinGraph) -> JoinProbePlan:
        """Return the plan of a query or of a materialized join."""
        return next(plan for plan in (*self.query_plans, *self.materialized_plans) if plan.join_graph == join)

"""The shared plan of a set of queries, computed without a session by the same pure functions that a session calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.stream import Stream
from headrace.plan.multiway import SlidingJoinQuery
from headrace.plan.stacked import AnyQuery
from headrace.runtime.probing import choose_orders
from headrace.sharing.changelog import Changelog, apply_changelog
from headrace.sharing.explain import explain
from headrace.sharing.multiway import explained
from headrace.sharing.multiway.asked import normalize_join
from headrace.sharing.multiway.pictured import GRAPH_FORMATS, build_physical_graph
from headrace.sharing.multiway.planning import plan_sliding_joins
from headrace.sharing.multiway.probes import SlidingJoinPlan
from headrace.sharing.parts import split_query
from headrace.sharing.picture import get_operator_kind
from headrace.sharing.shared_plan import LiveQuery, SharedOperator, StreamPlan, plan_stream
from headrace.sql import Catalog, bind_query

DEFAULT_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class SharedPlans:
    """The shared plans of all streams for a set of queries."""

    queries: tuple[LiveQuery, ...]
    plans: tuple[StreamPlan, ...]
    probe_plan: SlidingJoinPlan | None = None
    partitions: int = DEFAULT_PARTITIONS

    @property
    def operators(self) -> list[tuple[str, SharedOperator]]:
        """Every shared operator with its stream, ordered by descending number of users."""
        operators = [(plan.stream, operator) for plan in self.plans for operator in plan.operators]
        return sorted(operators, key=lambda pair: -len(self.users_of(pair[1])))

    def users_of(self, operator: SharedOperator) -> list[str]:
        """Return the names of the queries that use an operator."""
        names = {query.id: query.name for query in self.queries}
        return list(dict.fromkeys(names[member.query_id] for member in operator.subscribers))

    def to_text(self) -> str:
        """Return the explanation as text."""
        return explain(self.queries, self.plans, probes=self.probe_plan)

    def render_graph(self, form: str) -> str:
        """Return the data flow between the state stores of joins in SLIDING windows, in a format of `FORMS`."""
        return GRAPH_FORMATS[form](build_physical_graph(self.probe_plan, self.partitions))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON document."""
        streams = {
            plan.stream: {
                "columns": sorted(plan.columns),
                "operators": [self._operator_document(operator) for operator in plan.operators],
            }
            for plan in self.plans
        }
        names = [query.name for query in self.queries if not query.output_stream]
        joins = None if self.probe_plan is None else explained.plan_to_json(self.probe_plan)
        return {"queries": names, "streams": streams, "sliding_joins": joins, "text": self.to_text()}

    def _operator_document(self, operator: SharedOperator) -> dict[str, Any]:
        windows = sorted({str(member.window) for member in operator.subscribers if member.window is not None})
        return {
            "kind": get_operator_kind(operator),
            "keys": [str(key) for key in operator.keys],
            "windows": windows,
            "predicates": len(operator.predicate_index.predicates),
            "queries": self.users_of(operator),
        }


def plan_queries(streams: Sequence[Stream], plans: Mapping[str, AnyQuery], partitions: int = DEFAULT_PARTITIONS) -> SharedPlans:
    """Plan bound queries together, for a number of key partitions."""
    parts = [part for query_id, (name, plan) in enumerate(plans.items()) for part in split_query(query_id, name, plan)]
    live_queries = apply_changelog((), Changelog(tuple(part.addition for part in parts)))
    names = dict.fromkeys(
        [*(stream.name for stream in streams), *(part.result_stream.name for part in parts if part.result_stream)]
    )
    return SharedPlans(
        live_queries,
        tuple(plan_stream(name, live_queries) for name in names),
        _initial_probe_plan(live_queries, partitions),
        partitions,
    )


def _initial_probe_plan(live: Sequence[LiveQuery], partitions: int) -> SlidingJoinPlan | None:
    """Return the initial plan of joins in SLIDING windows, without statistics of their rows; None without such joins."""
    queries = tuple(normalize_join(query) for query in live if isinstance(query.plan, SlidingJoinQuery))
    if not queries:
        return None
    return plan_sliding_joins(
        queries, choose_orders(queries, None, None), 0, partitions, dict.fromkeys((query.id for query in queries), 0)
    )


def bind_queries(streams: Sequence[Stream], queries: Mapping[str, str], file: str) -> dict[str, AnyQuery]:
    """Bind all queries of a file; an error names the query and the file."""
    catalog = Catalog.of(streams)
    plans = {}
    for name, sql in queries.items():
        try:
            plans[name] = bind_query(sql, catalog)
        except HeadraceError as error:
            message = f"query '{name}' in '{file}': {error.message}"
            raise HeadraceError(message, place=error.place, detail=error.detail, hint=error.hint) from error
    return plans

"""`headrace explain SESSION.toml`: show the shared plan of the queries without running them.

The plan is computed without a session, by the same pure functions that a session calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.session_file import SessionFile
from headrace.errors import HeadraceError
from headrace.model.late_materialization import LateMaterialization
from headrace.model.names import check_name
from headrace.model.sliding_join_options import PlanSearch, PlanTarget, SlidingJoinOptions
from headrace.model.stream import Stream
from headrace.plan.derived import AnyQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.planner.changelog import Changelog, apply_changelog, compute_stream_depths, split_query
from headrace.planner.explain import text
from headrace.planner.explain.plan_diagram import get_operator_kind
from headrace.planner.explain.plan_graph import GRAPH_FORMATS, build_physical_graph
from headrace.planner.explain.text import explain
from headrace.planner.join.cost import estimate_by_default
from headrace.planner.join.normalized_join import normalize_join
from headrace.planner.join.plan_comparison import PlanComparison, comparison_to_json
from headrace.planner.join.plan_search import compare_plans
from headrace.planner.join.row_storage import RowStoragePlanner
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.join.sliding_join_planner import plan_sliding_joins
from headrace.planner.shared_plan import LiveQuery, SharedOperator, StreamPlan, plan_stream
from headrace.runtime.sliding_join_epochs import choose_orders
from headrace.sql import Catalog, bind_query

DEFAULT_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class SharedPlans:
    """The shared plans of all streams for a set of queries."""

    queries: tuple[LiveQuery, ...]
    plans: tuple[StreamPlan, ...]
    probe_plan: SlidingJoinPlan | None = None
    partitions: int = DEFAULT_PARTITIONS
    comparison: PlanComparison | None = None

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
        return explain(self.queries, self.plans, probes=self.probe_plan, comparison=self.comparison)

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
        joins = None if self.probe_plan is None else text.plan_to_json(self.probe_plan)
        if joins is not None and self.comparison is not None:
            joins["plans"] = comparison_to_json(self.comparison)
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


def plan_queries(
    streams: Sequence[Stream],
    plans: Mapping[str, AnyQuery],
    partitions: int = DEFAULT_PARTITIONS,
    sliding_joins: SlidingJoinOptions | None = None,
    late_materialization: LateMaterialization = LateMaterialization.AUTO,
) -> SharedPlans:
    """Plan bound queries together, for a number of key partitions.

    Joins in SLIDING windows have the plan that a session starts with; with `sliding_joins`, the one that these options choose by
    default statistics.
    """
    parts = [part for query_id, (name, plan) in enumerate(plans.items()) for part in split_query(query_id, name, plan)]
    live_queries = apply_changelog((), Changelog(tuple(part.addition for part in parts)))
    names = dict.fromkeys(
        [*(stream.name for stream in streams), *(part.result_stream.name for part in parts if part.result_stream)]
    )
    probe_plan, comparison = _plan_sliding_joins(live_queries, partitions, sliding_joins)
    storage = RowStoragePlanner(late_materialization, nested_streams=frozenset(compute_stream_depths(live_queries)))
    stream_plans = tuple(storage.plan_storage(plan_stream(name, live_queries), live_queries) for name in names)
    return SharedPlans(live_queries, stream_plans, probe_plan, partitions, comparison)


def _plan_sliding_joins(
    live: Sequence[LiveQuery], partitions: int, options: SlidingJoinOptions | None
) -> tuple[SlidingJoinPlan | None, PlanComparison | None]:
    """Return the plan of joins in SLIDING windows, without statistics of their rows; None without such joins."""
    isolated = options is not None and not options.is_shared
    queries = tuple(normalize_join(query, isolated=isolated) for query in live if isinstance(query.plan, SlidingJoinQuery))
    if not queries:
        return None, None
    comparison = None
    if options is not None:
        comparison = compare_plans(queries, estimate_by_default(queries), partitions, options)
        residual = comparison.taken.choice.residual_texts
        queries = tuple(replace(query, residual_texts=residual) for query in queries)
    choice = choose_orders(queries, None, None if comparison is None else comparison.taken.choice)
    plan = plan_sliding_joins(queries, choice, 0, partitions, dict.fromkeys((query.id for query in queries), 0))
    return plan, comparison


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


def command(
    file: Annotated[Path, typer.Argument(metavar="SESSION.toml", help="Streams and queries, in TOML.")],
    form: Annotated[str, typer.Argument(metavar="text|mermaid|svg", help="Format of --graph.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    as_graph: Annotated[bool, typer.Option("--graph", help="Show the data flow of joins in SLIDING windows.")] = False,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions, for the graph.")] = DEFAULT_PARTITIONS,
    plan: Annotated[
        PlanSearch | None,
        typer.Option(help="Plan joins in SLIDING windows by this search, by default statistics."),
    ] = None,
    target: Annotated[PlanTarget | None, typer.Option(help="What such a plan should have least of.")] = None,
    late_materialization: Annotated[
        LateMaterialization | None, typer.Option(help="Whether rows that several attributes join are stored once.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to a file.")] = None,
) -> None:
    """Show the shared operators and the queries that use them; reads no data except the columns of files without a schema."""
    if (form and not as_graph) or (as_graph and as_json) or (form or "text") not in GRAPH_FORMATS:
        raise typer.BadParameter(f"--graph takes one of {', '.join(GRAPH_FORMATS)}, and excludes --json")
    session_file = SessionFile.load(file)
    _check_names(session_file)
    options = session_file.sliding_joins
    changed = replace(options, search=plan or options.search, target=target or options.target)
    is_default = plan is None and target is None and options == SlidingJoinOptions()
    sharing = plan_session_file(session_file, partitions, None if is_default else changed, late_materialization)
    text = _render_plans(sharing, form or "text" if as_graph else "", as_json=as_json)
    if out is None:
        print(text, end="")
    else:
        _write_file(out, text)


def _check_names(file: SessionFile) -> None:
    """Check names as a session with a new checkpoint does; `run` may resume one with names of older versions."""
    for kind, entries in (("stream", file.streams), ("query", file.queries)):
        for entry in entries:
            check_name(kind, entry.name)


def _render_plans(sharing: SharedPlans, form: str, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(sharing.to_json(), indent=2) + "\n"
    return sharing.render_graph(form) if form else sharing.to_text()


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise HeadraceError(f"cannot write file '{path}': {problem.strerror}") from None


def plan_session_file(
    file: SessionFile,
    partitions: int = DEFAULT_PARTITIONS,
    sliding_joins: SlidingJoinOptions | None = None,
    late_materialization: LateMaterialization | None = None,
) -> SharedPlans:
    """Bind all queries of a session file and plan them together; raises the errors that `run` would raise."""
    streams = [entry.to_stream() for entry in file.streams]
    queries = bind_queries(streams, {query.name: query.sql for query in file.queries}, str(file.path))
    return plan_queries(streams, queries, partitions, sliding_joins, late_materialization or file.late_materialization)

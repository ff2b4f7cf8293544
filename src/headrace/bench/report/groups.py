"""Group the runs to compare: by scenario, and repeats of one system with equal parameters into a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.bench.measure.statistics import ConfidenceInterval, estimate_mean
from headrace.bench.result import BenchRun, MeasuredRun

OWN_SYSTEM = "headrace"
SYSTEM_ORDER = ("headrace", "headrace_local", "headrace_common", "headrace_apart", "flink", "spark", "duckdb", "limit")


@dataclass(frozen=True, slots=True, eq=False)
class ResultCell:
    """All repeats of a system with the same number of queries, key range and number of nodes; at least one run.

    `nodes` is 0 where the benchmark started no nodes.
    """

    sut: str
    queries: int
    keys: int
    nodes: int
    runs: tuple[BenchRun, ...]

    @property
    def parameters(self) -> tuple[int, int, int]:
        """What the cell has in common with those of other systems."""
        return self.queries, self.keys, self.nodes

    @property
    def measured(self) -> list[MeasuredRun]:
        """The measurements of the successful runs."""
        return [run.figures for run in self.runs if run.figures is not None]

    @property
    def failures(self) -> list[str]:
        """The distinct reasons of the failed runs."""
        return list(dict.fromkeys(run.failure for run in self.runs if run.failure is not None))

    @property
    def typical_run(self) -> BenchRun | None:
        """The run with the median rate; figures over time show this run."""
        measured_runs = sorted((run for run in self.runs if run.figures is not None), key=_rate_of_run)
        return measured_runs[(len(measured_runs) - 1) // 2] if measured_runs else None

    def compute_confidence(self, measurement: Callable[[MeasuredRun], float | None]) -> ConfidenceInterval | None:
        """Return the mean and confidence interval of a measurement over the repeats that have it."""
        values = [value for value in map(measurement, self.measured) if value is not None]
        return estimate_mean(values) if values else None

    @property
    def sustainable_rate(self) -> ConfidenceInterval | None:
        """The rate found by a search or by reading a topic, in rows/s; None without: a fixed rate is not the highest."""
        found = (run for run in self.runs if run.trials or run.scenario.get("topic"))
        rates = [run.figures.sustainable_rate for run in found if run.figures is not None]
        known_rates = [value for value in rates if value is not None]
        return estimate_mean(known_rates) if known_rates else None


def _rate_of_run(run: BenchRun) -> float:
    assert run.figures is not None
    return run.figures.sustainable_rate or run.figures.read_rate


@dataclass(frozen=True, slots=True)
class VariedParameter:
    """The parameter by which the runs of a scenario differ: its name in titles, its unit, and its value in a cell."""

    title: str
    unit: str
    units: str
    value_of: Callable[[ResultCell], int]

    def format_value(self, value: int) -> str:
        """Return a value with its unit, for example "8 queries"."""
        return f"{value:,} {self.unit if value == 1 else self.units}"


BY_QUERIES = VariedParameter("number of queries", "query", "queries", lambda cell: cell.queries)
BY_KEYS = VariedParameter("key range", "key", "keys", lambda cell: cell.keys)
BY_NODES = VariedParameter("number of nodes", "node", "nodes", lambda cell: cell.nodes)


@dataclass(frozen=True, slots=True)
class ScenarioGroup:
    """All runs of one scenario in one place: this machine ("" as `place`), nodes of one size, or a cluster of the user.

    `reads_topic` is true for stored input, which systems read as fast as they can.
    """

    name: str
    place: str
    title: str
    description: str
    seconds: float
    warm_up: float
    load: float
    reads_topic: bool
    cells: tuple[ResultCell, ...]

    @property
    def systems(self) -> list[str]:
        """The systems in display order, headrace first."""
        return order_systems({cell.sut for cell in self.cells})

    @property
    def parameter(self) -> VariedParameter:
        """The varied parameter: the number of nodes or the key range if the runs differ in it, else the number of queries."""
        varied = (parameter for parameter in (BY_NODES, BY_KEYS) if len(set(map(parameter.value_of, self.cells))) > 1)
        return next(varied, BY_QUERIES)

    def parameter_of(self, cell: ResultCell) -> int:
        """Return the value of the varied parameter."""
        return self.parameter.value_of(cell)

    @property
    def parameter_values(self) -> list[int]:
        """All values of the varied parameter, ascending."""
        return sorted({self.parameter_of(cell) for cell in self.cells})

    def describe_cell(self, cell: ResultCell) -> str:
        """Return the parameters of a cell as text, for example "8 queries" or "1 query on 4 nodes"."""
        queries, parameter = BY_QUERIES.format_value(cell.queries), self.parameter
        if parameter is BY_QUERIES:
            return queries
        return f"{queries} {'on' if parameter is BY_NODES else 'and'} {parameter.format_value(parameter.value_of(cell))}"

    def cells_of(self, sut: str) -> list[ResultCell]:
        """Return the cells of a system."""
        return [cell for cell in self.cells if cell.sut == sut]

    def find_own_cell(self, cell: ResultCell) -> ResultCell | None:
        """Return the headrace cell with the same parameters."""
        return next((own for own in self.cells_of(OWN_SYSTEM) if own.parameters == cell.parameters), None)

    @property
    def max_repeats(self) -> int:
        """The largest number of repeats of a cell."""
        return max(len(cell.runs) for cell in self.cells)


def group_runs(runs: Sequence[BenchRun]) -> list[ScenarioGroup]:
    """Return a group for each scenario and place, in order of their first runs."""
    runs_by_group: dict[tuple[str, str], list[BenchRun]] = {}
    for run in runs:
        runs_by_group.setdefault((run.scenario["name"], _describe_place(run)), []).append(run)
    return [_make_group(name, place, members) for (name, place), members in runs_by_group.items()]


def _describe_place(run: BenchRun) -> str:
    cluster = run.scenario.get("cluster")
    if not cluster:
        return ""
    return f"on {cluster['master']}" if cluster["master"] else f"nodes of {cluster['cores']:g} cores"


def _make_group(name: str, place: str, runs: Sequence[BenchRun]) -> ScenarioGroup:
    runs_by_key: dict[tuple[int, int, int, str], list[BenchRun]] = {}
    for run in runs:
        runs_by_key.setdefault((run.query_count, _key_range_of(run), _nodes_of(run), run.system), []).append(run)
    positions = {sut: position for position, sut in enumerate(order_systems({run.system for run in runs}))}
    keys = sorted(runs_by_key, key=lambda key: (*key[:3], positions[key[3]]))
    cells = tuple(ResultCell(key[3], *key[:3], tuple(runs_by_key[key])) for key in keys)
    last = runs[-1].scenario
    seconds, warm_up, load = (float(last[key]) for key in ("seconds", "warm_up", "load"))
    return ScenarioGroup(name, place, last["title"], last["about"], seconds, warm_up, load, bool(last.get("topic")), cells)


def _key_range_of(run: BenchRun) -> int:
    """Return the key range: the largest one if the streams differ."""
    return max((stream["keys"] for stream in run.scenario["streams"]), default=0)


def _nodes_of(run: BenchRun) -> int:
    """Return the number of nodes; 0 for a run on this machine alone or on a cluster of the user."""
    return int((run.scenario.get("cluster") or {}).get("nodes", 0))


def order_systems(systems: Iterable[str]) -> list[str]:
    """Return systems in display order; unknown ones last, by name."""
    return sorted(systems, key=lambda name: (SYSTEM_ORDER.index(name) if name in SYSTEM_ORDER else len(SYSTEM_ORDER), name))

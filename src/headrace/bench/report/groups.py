"""Group the runs to compare: by scenario, and repeats of one system with equal parameters into a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.bench.measure.statistics import ConfidenceInterval, estimate_mean
from headrace.bench.result import BenchRun, MeasuredRun

OWN_SYSTEM = "headrace"
SYSTEM_ORDER = ("headrace", "headrace_common", "headrace_apart", "flink", "spark", "duckdb", "limit")


@dataclass(frozen=True, slots=True, eq=False)
class ResultCell:
    """All repeats of a system with the same number of queries and the same key range; at least one run."""

    sut: str
    queries: int
    keys: int
    runs: tuple[BenchRun, ...]

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
        """The rate found by a search, in rows/s; None without a search, since a fixed rate that held is not the highest."""
        rates = [run.figures.sustainable_rate for run in self.runs if run.figures is not None and run.trials]
        known_rates = [value for value in rates if value is not None]
        return estimate_mean(known_rates) if known_rates else None


def _rate_of_run(run: BenchRun) -> float:
    assert run.figures is not None
    return run.figures.sustainable_rate or run.figures.read_rate


@dataclass(frozen=True, slots=True)
class ScenarioGroup:
    """All runs of one scenario."""

    name: str
    title: str
    description: str
    seconds: float
    warm_up: float
    load: float
    cells: tuple[ResultCell, ...]

    @property
    def systems(self) -> list[str]:
        """The systems in display order, headrace first."""
        return order_systems({cell.sut for cell in self.cells})

    @property
    def has_key_ranges(self) -> bool:
        """Whether the runs vary the key range instead of the number of queries."""
        return len({cell.keys for cell in self.cells}) > 1

    def parameter_of(self, cell: ResultCell) -> int:
        """Return the value of the varied parameter: the number of queries, or the key range."""
        return cell.keys if self.has_key_ranges else cell.queries

    @property
    def parameter_values(self) -> list[int]:
        """All values of the varied parameter, ascending."""
        return sorted({self.parameter_of(cell) for cell in self.cells})

    def describe_cell(self, cell: ResultCell) -> str:
        """Return the parameters of a cell as text, for example "8 queries"."""
        queries = f"{cell.queries:,} {'query' if cell.queries == 1 else 'queries'}"
        return f"{queries} and {cell.keys:,} keys" if self.has_key_ranges else queries

    def cells_of(self, sut: str) -> list[ResultCell]:
        """Return the cells of a system."""
        return [cell for cell in self.cells if cell.sut == sut]

    def find_own_cell(self, cell: ResultCell) -> ResultCell | None:
        """Return the headrace cell with the same parameters."""
        candidates = (own for own in self.cells_of(OWN_SYSTEM) if (own.queries, own.keys) == (cell.queries, cell.keys))
        return next(candidates, None)

    @property
    def max_repeats(self) -> int:
        """The largest number of repeats of a cell."""
        return max(len(cell.runs) for cell in self.cells)


def group_runs(runs: Sequence[BenchRun]) -> list[ScenarioGroup]:
    """Return a group for each scenario, in order of their first runs."""
    names = list(dict.fromkeys(run.scenario["name"] for run in runs))
    return [_make_group(name, [run for run in runs if run.scenario["name"] == name]) for name in names]


def _make_group(name: str, runs: Sequence[BenchRun]) -> ScenarioGroup:
    runs_by_key: dict[tuple[int, int, str], list[BenchRun]] = {}
    for run in runs:
        runs_by_key.setdefault((run.query_count, _key_range_of(run), run.sut), []).append(run)
    positions = {sut: position for position, sut in enumerate(order_systems({run.sut for run in runs}))}
    keys = sorted(runs_by_key, key=lambda key: (key[0], key[1], positions[key[2]]))
    cells = tuple(
        ResultCell(sut, queries, key_range, tuple(runs_by_key[queries, key_range, sut])) for queries, key_range, sut in keys
    )
    last = runs[-1].scenario
    seconds, warm_up, load = (float(last[key]) for key in ("seconds", "warm_up", "load"))
    return ScenarioGroup(name, last["title"], last["about"], seconds, warm_up, load, cells)


def _key_range_of(run: BenchRun) -> int:
    """Return the key range: the largest one if the streams differ."""
    return max((stream["keys"] for stream in run.scenario["streams"]), default=0)


def order_systems(systems: Iterable[str]) -> list[str]:
    """Return systems in display order; unknown ones last, by name."""
    return sorted(systems, key=lambda name: (SYSTEM_ORDER.index(name) if name in SYSTEM_ORDER else len(SYSTEM_ORDER), name))

"""What is compared with what: runs of one scenario, repeats of one system under equal parameters taken together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.bench.confidence import Confidence, confidence
from headrace.bench.result import Measured, Run

OURS = "headrace"
ORDER = ("headrace", "headrace_common", "headrace_apart", "flink", "spark", "duckdb", "limit")


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """All repeats of one system with one number of queries and one key range; there is at least one."""

    sut: str
    queries: int
    keys: int
    runs: tuple[Run, ...]

    @property
    def measured(self) -> list[Measured]:
        """The runs that gave numbers."""
        return [run.measured for run in self.runs if run.measured is not None]

    @property
    def failures(self) -> list[str]:
        """The reasons of those that did not, each once."""
        return list(dict.fromkeys(run.failed for run in self.runs if run.failed is not None))

    @property
    def typical(self) -> Run | None:
        """The run whose rate is in the middle: the one whose course is drawn."""
        found = sorted((run for run in self.runs if run.measured is not None), key=_rate)
        return found[(len(found) - 1) // 2] if found else None

    def figure(self, of: Callable[[Measured], float | None]) -> Confidence | None:
        """Return mean and interval of a figure over the repeats that have it."""
        values = [value for value in map(of, self.measured) if value is not None]
        return confidence(values) if values else None

    @property
    def sustainable(self) -> Confidence | None:
        """The rate that a search found, in rows/s. A rate that was only asked for, and borne, says nothing of the highest."""
        searched = [run.measured.sustainable for run in self.runs if run.measured is not None and run.trials]
        values = [value for value in searched if value is not None]
        return confidence(values) if values else None


def _rate(run: Run) -> float:
    assert run.measured is not None
    return run.measured.sustainable or run.measured.read


@dataclass(frozen=True, slots=True)
class Group:
    """All runs of one scenario."""

    name: str
    title: str
    about: str
    seconds: float
    warm_up: float
    load: float
    cells: tuple[Cell, ...]

    @property
    def systems(self) -> list[str]:
        """The systems, ours first."""
        return ordered({cell.sut for cell in self.cells})

    @property
    def by_keys(self) -> bool:
        """Whether key ranges are compared, rather than numbers of queries."""
        return len({cell.keys for cell in self.cells}) > 1

    def value(self, cell: Cell) -> int:
        """Return the parameter that is varied: the number of queries, or the key range."""
        return cell.keys if self.by_keys else cell.queries

    @property
    def values(self) -> list[int]:
        """All values of the parameter that is varied."""
        return sorted({self.value(cell) for cell in self.cells})

    def label(self, cell: Cell) -> str:
        """Return the parameters of a cell in words."""
        many = f"{cell.queries:,} {'query' if cell.queries == 1 else 'queries'}"
        return f"{many} and {cell.keys:,} keys" if self.by_keys else many

    def of(self, sut: str) -> list[Cell]:
        """Return the cells of a system."""
        return [cell for cell in self.cells if cell.sut == sut]

    def ours(self, cell: Cell) -> Cell | None:
        """Return what we did under the same parameters."""
        same = (each for each in self.of(OURS) if (each.queries, each.keys) == (cell.queries, cell.keys))
        return next(same, None)

    @property
    def repeats(self) -> int:
        """How often each was run, at most."""
        return max(len(cell.runs) for cell in self.cells)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Return the scenarios in the order in which they were first run."""
    names = list(dict.fromkeys(run.scenario["name"] for run in runs))
    return [_group(name, [run for run in runs if run.scenario["name"] == name]) for name in names]


def _group(name: str, runs: Sequence[Run]) -> Group:
    found: dict[tuple[int, int, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.queries, _keys(run), run.sut), []).append(run)
    places = {sut: place for place, sut in enumerate(ordered({run.sut for run in runs}))}
    keys = sorted(found, key=lambda key: (key[0], key[1], places[key[2]]))
    cells = tuple(Cell(sut, queries, number, tuple(found[queries, number, sut])) for queries, number, sut in keys)
    last = runs[-1].scenario
    seconds, warm_up, load = (float(last[key]) for key in ("seconds", "warm_up", "load"))
    return Group(name, last["title"], last["about"], seconds, warm_up, load, cells)


def _keys(run: Run) -> int:
    """Return the key range; scenarios whose streams differ in it are known by the largest."""
    return max((stream["keys"] for stream in run.scenario["streams"]), default=0)


def ordered(systems: Iterable[str]) -> list[str]:
    """Return systems in the order they always have; unknown ones last, by name."""
    return sorted(systems, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))

"""A scenario: all parameters of a measurement except the system under test and its sustainable rate.

It holds the streams, the queries, the rate script, the query changes, the duration and the limits for a sustained rate. It is a
value: every result carries it in full, and it reproduces the same streams and queries.

Scenario files are TOML; built-in scenarios are found by name, others by path. Unknown or invalid values raise an error with
the key, the file and the allowed values; no key is ignored. `docs/benchmark.md` describes the keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.bench.cluster import BenchCluster
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.driver.topic import TopicSpec
from headrace.bench.measure.sustainable import RateSearchBounds, SustainabilityLimits
from headrace.bench.queries.query import BenchQuery
from headrace.bench.queries.sets import QueryGenerator, make_query_generator, options_of
from headrace.bench.scenarios.ad_hoc import AdHocSchedule, EventSchedule, TrafficSchedule, ad_hoc_to_json, parse_ad_hoc
from headrace.errors import HeadraceError

STEADY_RATE = RateScript.constant(1.0)
PEERS = ("headrace", "spark", "flink", "limit", "duckdb")
SYSTEMS = (*PEERS, "headrace_local", "headrace_common", "headrace_apart")  # the last two share less between sliding joins
CLUSTER_SYSTEMS = tuple(name for name in SYSTEMS if name not in {"limit", "duckdb", "headrace_local"})  # those are one process


@dataclass(frozen=True, slots=True)
class RateSearchSettings:
    """Settings of the search for the sustainable rate: first rate, bounds, length of a trial, limits of the backlog."""

    start: float = 10_000_000
    floor: float = 1_000
    ceiling: float = 40_000_000
    precision: float = 0.05
    trials: int = 16
    seconds: float = 24
    acceptable_s: float = 2.0
    tolerated_s: float = 5.0

    def __post_init__(self) -> None:
        """Reject empty bounds and a first rate outside them."""
        try:
            _ = self.bounds, self.make_limits(0.0)
        except ValueError as error:
            raise HeadraceError("invalid search settings", detail=str(error)) from error
        if not self.floor <= self.start <= self.ceiling or self.seconds <= 0:
            message = f"a search cannot begin at {self.start:,.0f} rows/s, in trials of {self.seconds:g} s"
            raise HeadraceError(message, hint="floor ≤ start ≤ ceiling, seconds > 0")

    @property
    def bounds(self) -> RateSearchBounds:
        """The range, precision and number of trials of the search."""
        return RateSearchBounds(self.floor, self.ceiling, self.precision, self.trials)

    def make_limits(self, warm_up: float) -> SustainabilityLimits:
        """Return the limits for a sustained rate."""
        return SustainabilityLimits(self.acceptable_s, self.tolerated_s, warm_up=warm_up)


@dataclass(frozen=True, slots=True)
class RequestSearchSettings:
    """Settings of the search for the sustainable query throughput: the rate of rows meanwhile, and rates in requests/s."""

    rows_per_second: float = 100_000
    start: float = 100
    floor: float = 1
    ceiling: float = 10_000
    precision: float = 0.1
    trials: int = 10
    seconds: float = 15

    def __post_init__(self) -> None:
        """Reject empty bounds and a first rate outside them."""
        try:
            _ = self.bounds
        except ValueError as error:
            raise HeadraceError("invalid settings of the search for requests", detail=str(error)) from error
        if not self.floor <= self.start <= self.ceiling or self.seconds <= 0 or self.rows_per_second <= 0:
            message = f"a search cannot begin at {self.start:,.0f} requests/s, in trials of {self.seconds:g} s"
            raise HeadraceError(message, hint="floor ≤ start ≤ ceiling, seconds > 0, rows_per_second > 0")

    @property
    def bounds(self) -> RateSearchBounds:
        """The range, precision and number of trials of the search."""
        return RateSearchBounds(self.floor, self.ceiling, self.precision, self.trials)


@dataclass(frozen=True, slots=True)
class QueryWorkload:
    """The queries of a scenario: a query set, and the number of queries at the start."""

    generator: str
    query_generator: QueryGenerator
    count: int = 1

    def __post_init__(self) -> None:
        """Reject a scenario without queries."""
        if self.count < 1:
            raise HeadraceError(f"{self.count} queries requested", hint="request one or more")


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """Query changes at second `at` of the run: queries to add, and names of queries to remove."""

    at: float
    add: tuple[BenchQuery, ...]
    remove: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """See the module docstring.

    `rate` is a script relative to the base rate, which is `load` times the sustainable rate found. With a `cluster`, the systems
    run on its nodes.
    """

    name: str
    title: str
    about: str
    streams: tuple[StreamSpec, ...]
    workload: QueryWorkload
    ad_hoc: AdHocSchedule | None = None
    rate: RateScript = STEADY_RATE
    load: float = 0.9
    seconds: float = 60.0
    warm_up: float = 0.25
    search: RateSearchSettings = RateSearchSettings()
    systems: tuple[str, ...] = PEERS
    cluster: BenchCluster | None = None
    topic: TopicSpec | None = None
    request_search: RequestSearchSettings | None = None

    def __post_init__(self) -> None:
        """Reject values that cannot run."""
        if not self.seconds > 0 or not 0 <= self.warm_up < 1 or not self.load > 0:
            raise HeadraceError(
                f"scenario '{self.name}' has seconds = {self.seconds:g}, warm_up = {self.warm_up:g}, load = {self.load:g}",
                hint="seconds and load must be positive, warm_up is a share below 1",
            )
        unknown = [name for name in self.systems if name not in SYSTEMS]
        if unknown or not self.systems:
            problem = f"unknown system '{unknown[0]}'" if unknown else "no systems"
            raise HeadraceError(f"scenario '{self.name}' has {problem}", detail=f"systems: {', '.join(SYSTEMS)}")
        declared = {stream.name for stream in self.streams}
        if len(declared) < len(self.streams):
            raise HeadraceError(f"scenario '{self.name}' has two streams with the same name")
        missing = sorted(self._read_stream_names() - declared)
        if missing:
            message = f"scenario '{self.name}' has queries over stream '{missing[0]}', which it does not declare"
            raise HeadraceError(message, detail=f"streams: {', '.join(sorted(declared))}")
        if self.topic is not None and (len(self.streams) > 1 or self.ad_hoc is not None or self.cluster is not None):
            raise HeadraceError(f"scenario '{self.name}' has a topic, so it must have one stream, no [ad_hoc] and no cluster")
        if self.request_search is not None and not isinstance(self.ad_hoc, TrafficSchedule):
            hint = 'write [ad_hoc] with kind = "traffic", which a search varies'
            raise HeadraceError(f"scenario '{self.name}' has a [request_search] without traffic", hint=hint)

    @property
    def peak_query_count(self) -> int:
        """The peak number of live queries, which identifies a result."""
        live = highest = self.initial_count
        for change in self.ad_hoc.list_changes(self.seconds) if self.ad_hoc else ():
            live += change.add - change.remove
            highest = max(highest, live)
        return highest

    @property
    def initial_count(self) -> int:
        """The number of queries at the start."""
        return self.ad_hoc.initial if self.ad_hoc else self.workload.count

    def initial_queries(self) -> tuple[BenchQuery, ...]:
        """Return the queries at the start."""
        return self.workload.query_generator.queries(self.initial_count)

    def peak_queries(self) -> tuple[BenchQuery, ...]:
        """Return as many queries as are live at the peak."""
        return self.workload.query_generator.queries(self.peak_query_count)

    def build_steps(self) -> tuple[ScenarioStep, ...]:
        """Return the query changes; the longest-lived queries are removed first."""
        changes = self.ad_hoc.list_changes(self.seconds) if self.ad_hoc else ()
        all_queries = self.workload.query_generator.queries(self.initial_count + sum(change.add for change in changes))
        oldest = self.ad_hoc.kept if isinstance(self.ad_hoc, TrafficSchedule) else 0
        newest, steps = self.initial_count, []
        for change in changes:
            removed = all_queries[oldest : oldest + change.remove]
            steps.append(
                ScenarioStep(change.at, all_queries[newest : newest + change.add], tuple(query.name for query in removed))
            )
            oldest, newest = oldest + change.remove, newest + change.add
        return tuple(steps)

    def used_streams(self) -> tuple[StreamSpec, ...]:
        """Return the streams that some query reads: rows without a reader would only fill queues."""
        read_names = self._read_stream_names()
        return tuple(stream for stream in self.streams if stream.name in read_names)

    def _read_stream_names(self) -> set[str]:
        added = sum(change.add for change in self.ad_hoc.list_changes(self.seconds)) if self.ad_hoc else 0
        all_queries = self.workload.query_generator.queries(self.initial_count + added)
        return {stream for query in all_queries for stream in query.streams}

    def scale_rate(self, base: float) -> RateScript:
        """Return the rate script of the run in rows/s for a base rate: the given rate, or `load` times the sustainable one."""
        return self.rate.scale(base)

    def make_limits(self) -> SustainabilityLimits:
        """Return the limits for a sustained rate."""
        return self.search.make_limits(self.warm_up)

    def with_traffic(self, per_second: float, seconds: float | None = None) -> Scenario:
        """Return the scenario with another rate of requests, and another duration if one is given."""
        assert isinstance(self.ad_hoc, TrafficSchedule)
        return replace(self, ad_hoc=replace(self.ad_hoc, per_second=per_second), seconds=seconds or self.seconds)

    def with_overrides(
        self,
        *,
        queries: int | None = None,
        seconds: float | None = None,
        keys: int | None = None,
        load: float | None = None,
        cluster: BenchCluster | None = None,
        rows: int | None = None,
    ) -> Scenario:
        """Return the scenario with other parameters; None keeps a value. `keys` applies to all streams with configurable keys."""
        changed = self if queries is None else self._with_queries(queries)
        if rows is not None and self.topic is None:
            raise HeadraceError(f"scenario '{self.name}' has no topic whose rows can be chosen")
        return replace(
            changed,
            streams=changed.streams if keys is None else self._with_keys(keys),
            seconds=changed.seconds if seconds is None else seconds,
            load=changed.load if load is None else load,
            cluster=changed.cluster if cluster is None else cluster,
            topic=changed.topic if rows is None or changed.topic is None else replace(changed.topic, rows=rows),
        )

    def _with_keys(self, keys: int) -> tuple[StreamSpec, ...]:
        if not any(stream.key_column for stream in self.streams):
            raise HeadraceError(f"scenario '{self.name}' has no stream whose keys can be chosen")
        return tuple(replace(stream, keys=keys) if stream.key_column else stream for stream in self.streams)

    def _with_queries(self, queries: int) -> Scenario:
        if self.ad_hoc is None:
            return replace(self, workload=replace(self.workload, count=queries))
        name = "initial" if isinstance(self.ad_hoc, EventSchedule) else "queries"
        return replace(self, ad_hoc=parse_ad_hoc({**ad_hoc_to_json(self.ad_hoc), name: queries}))

    def to_json(self) -> dict[str, Any]:
        """Return all values, resolved, for a result."""
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "systems": list(self.systems),
            "seconds": self.seconds,
            "warm_up": self.warm_up,
            "load": self.load,
            "rate": self.rate.to_json(),
            "streams": [stream.to_json() for stream in self.streams],
            "queries": {
                "generator": self.workload.generator,
                "count": self.workload.count,
                **_to_plain_json(options_of(self.workload.query_generator)),
            },
            "ad_hoc": None if self.ad_hoc is None else _to_plain_json(ad_hoc_to_json(self.ad_hoc)),
            "search": asdict(self.search),
            "cluster": None if self.cluster is None else self.cluster.to_json(),
            "topic": None if self.topic is None else self.topic.to_json(),
            "request_search": None if self.request_search is None else asdict(self.request_search),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Scenario:
        """Read the JSON form of `to_json`."""
        queries = dict(value["queries"])
        generator, count = queries.pop("generator"), queries.pop("count")
        return Scenario(
            value["name"],
            value["title"],
            value["about"],
            tuple(StreamSpec.from_json(stream) for stream in value["streams"]),
            QueryWorkload(generator, make_query_generator(generator, queries), count),
            None if value["ad_hoc"] is None else parse_ad_hoc(value["ad_hoc"]),
            RateScript.from_json(value["rate"]),
            value["load"],
            value["seconds"],
            value["warm_up"],
            RateSearchSettings(**value["search"]),
            tuple(value["systems"]),
            BenchCluster.from_json(value.get("cluster")),
            TopicSpec(**value["topic"]) if value.get("topic") else None,
            RequestSearchSettings(**value["request_search"]) if value.get("request_search") else None,
        )


def _to_plain_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert tuples to lists, as JSON returns them."""
    return {name: _tuples_to_lists(value) for name, value in values.items()}


def _tuples_to_lists(value: Any) -> Any:
    return [_tuples_to_lists(item) for item in value] if isinstance(value, tuple | list) else value


_TOP_LEVEL_TYPES: Mapping[str, tuple[type, ...]] = {
    "title": (str,), "about": (str,), "systems": (list,), "seconds": (int, float), "warm_up": (int, float),
    "load": (int, float), "rate": (int, float, dict), "streams": (dict,), "queries": (dict,), "ad_hoc": (dict,),
    "search": (dict,), "cluster": (dict,), "topic": (dict,), "request_search": (dict,),
}  # fmt: skip
_REQUIRED_KEYS = ("title", "about", "streams", "queries")
_TYPE_NAMES = {str: "a string", int: "a number", float: "a number", dict: "a table", list: "an array", bool: "true or false"}


def list_scenarios() -> list[str]:
    """Return the names of the built-in scenarios."""
    folder = resources.files("headrace.bench") / "scenarios"
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".toml"))


def load_scenario(name: str) -> Scenario:
    """Load a scenario by its name, or by the path of a file that ends in .toml."""
    if name.endswith(".toml"):
        path = Path(name).expanduser()
        try:
            return parse_scenario(path.stem, path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise HeadraceError(f"scenario file '{path}' cannot be read", detail=str(error)) from error
    known = list_scenarios()
    if name not in known:
        hint = "use one of these names, or a file that ends in .toml"
        raise HeadraceError(f"unknown scenario '{name}'", detail=f"scenarios: {', '.join(known)}", hint=hint)
    file = resources.files("headrace.bench") / "scenarios" / f"{name}.toml"
    return parse_scenario(name, file.read_text(encoding="utf-8"), f"{name}.toml")


def parse_scenario(name: str, text: str, file: str) -> Scenario:
    """Parse the text of a scenario file; errors name the file and the key."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HeadraceError(f"scenario file '{file}' is not TOML", detail=str(error)) from error
    _check_top_level(values, file)
    options: dict[str, Any] = {key: values[key] for key in ("seconds", "warm_up", "load") if key in values}
    if "systems" in values:
        options["systems"] = tuple(values["systems"])
    streams = tuple(_parse_stream(stream, values["streams"][stream], file) for stream in values["streams"])
    with _error_context(file, "queries"):
        workload = _parse_workload(values["queries"])
        if "ad_hoc" in values and "count" in values["queries"]:
            raise HeadraceError("count has no meaning beside [ad_hoc]", hint="remove count: [ad_hoc] sets the number of queries")
    with _error_context(file, "rate"):
        options["rate"] = RateScript.parse(values.get("rate", 1.0))
    with _error_context(file, "ad_hoc"):
        options["ad_hoc"] = parse_ad_hoc(values["ad_hoc"]) if "ad_hoc" in values else None
    with _error_context(file, "search"):
        options["search"] = _build_checked(RateSearchSettings, values.get("search", {}))
    with _error_context(file, "cluster"):
        options["cluster"] = _build_checked(BenchCluster, values["cluster"]) if "cluster" in values else None
    with _error_context(file, "topic"):
        options["topic"] = _build_checked(TopicSpec, values["topic"]) if "topic" in values else None
    with _error_context(file, "request_search"):
        options["request_search"] = (
            _build_checked(RequestSearchSettings, values["request_search"]) if "request_search" in values else None
        )
    with _error_context(file, ""):
        return Scenario(name, values["title"], " ".join(values["about"].split()), streams, workload, **options)


@contextmanager
def _error_context(file: str, key: str) -> Iterator[None]:
    """Prefix an error with the table and the file in which it occurred."""
    try:
        yield
    except HeadraceError as error:
        where = f"[{key}] of '{file}'" if key else f"'{file}'"
        raise HeadraceError(f"in {where}: {error.message}", detail=error.detail, hint=error.hint) from error


def _check_top_level(values: Mapping[str, Any], file: str) -> None:
    for key, value in values.items():
        if key not in _TOP_LEVEL_TYPES:
            raise HeadraceError(f"unknown key '{key}' in '{file}'", detail=f"keys: {', '.join(_TOP_LEVEL_TYPES)}")
        if type(value) not in _TOP_LEVEL_TYPES[key]:
            wanted = " or ".join(dict.fromkeys(_TYPE_NAMES[kind] for kind in _TOP_LEVEL_TYPES[key]))
            raise HeadraceError(f"key '{key}' in '{file}' is {_type_name(value)}, but must be {wanted}")
    for key in _REQUIRED_KEYS:
        if key not in values:
            raise HeadraceError(f"key '{key}' is missing in '{file}'", detail=f"required: {', '.join(_REQUIRED_KEYS)}")


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def _parse_stream(name: str, value: object, file: str) -> StreamSpec:
    with _error_context(file, f"streams.{name}"):
        if not isinstance(value, dict):
            raise HeadraceError(
                f"it is {_type_name(value)}, but must be a table", hint=f"write [streams.{name}] and the keys below it"
            )
        spec: StreamSpec = _build_checked(StreamSpec, {"name": name, **value})
    return spec


def _parse_workload(value: Mapping[str, Any]) -> QueryWorkload:
    options = dict(value)
    generator, count = options.pop("generator", None), options.pop("count", 1)
    if not isinstance(generator, str) or not isinstance(count, int):
        raise HeadraceError(
            "it needs a generator, and count must be an integer", hint='write generator = "fields" and count = 64'
        )
    return QueryWorkload(generator, make_query_generator(generator, options), count)


def _build_checked(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a dataclass from its fields; reject unknown fields and values of another type."""
    declared = {field.name: str(field.type) for field in fields(kind)}
    for name, value in values.items():
        if name not in declared:
            raise HeadraceError(f"unknown key '{name}'", detail=f"keys: {', '.join(declared)}")
        allowed = {"float": (int, float), "int": (int,), "str": (str,)}[declared[name]]
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise HeadraceError(f"key '{name}' is {_type_name(value)}, but must be {_TYPE_NAMES[allowed[0]]}")
    try:
        return kind(**values)
    except TypeError as error:
        raise HeadraceError("a key is missing", detail=str(error)) from error

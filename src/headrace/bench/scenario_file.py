"""Scenario files: TOML, built-in scenarios by name, others by path.

Unknown or invalid values raise an error with the key, the file and the allowed values; no key is ignored. `docs/benchmark.md`
describes the keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.bench.ad_hoc import parse_ad_hoc
from headrace.bench.queries.sets import make_query_generator
from headrace.bench.rate import RateScript
from headrace.bench.scenario import QueryWorkload, RateSearchSettings, Scenario
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError

_TOP_LEVEL_TYPES: Mapping[str, tuple[type, ...]] = {
    "title": (str,), "about": (str,), "systems": (list,), "seconds": (int, float), "warm_up": (int, float),
    "load": (int, float), "rate": (int, float, dict), "streams": (dict,), "queries": (dict,), "ad_hoc": (dict,),
    "search": (dict,),
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

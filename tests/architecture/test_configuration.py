"""docs/configuration.md has every option and limit of the code, with its default, and no others.

The document has a table below each heading: names in the first cell, the default in the second. The tests collect the same from
the code: from signatures of the public API, keys of session files, commands of typer, fields of ServiceLimits, constants of the
SQL limits, and the environment variables that modules read.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from project import ROOT, list_modules
from pydantic import BaseModel

import headrace as hr
from headrace.backends.spark.environment import ALLOCATOR_SETTINGS
from headrace.cli import COMMANDS, build_application, session_file
from headrace.client import RemoteQuery, RemoteSession
from headrace.connectors import source_options
from headrace.model.window_join_options import WindowJoinOptions
from headrace.plan import derived, sliding_join, window_join
from headrace.service import declared_streams
from headrace.service.admission import ServiceLimits
from headrace.sql import limits

DOCUMENT = ROOT / "docs" / "configuration.md"
REQUIRED, NO_DEFAULT = "required", "–"
FOR_TOOLS = {"RemoteQuery.follow", "Session.find", "RemoteSession.query"}  # their optional parameters are no settings
OTHER_PROCESSES = ("bench/systems/flink_job.py",)  # modules that run in the environment of another engine

CALLS: dict[str, Callable[..., Any]] = {
    "Session": hr.Session,
    "Session.create_stream": hr.Session.create_stream,
    "Session.add": hr.Session.add,
    "window_joins": WindowJoinOptions,
    "QueryBudget": hr.QueryBudget,
    "MemorySource": hr.MemorySource,
    "FileSource": hr.FileSource,
    "RateSource": hr.RateSource,
    "TcpSource": hr.TcpSource,
    "KafkaSource": hr.KafkaSource,
}
"""Calls with a table of all their parameters, by its heading."""
HANDLES = {"Session": hr.Session, "Query": hr.Query, "RemoteSession": RemoteSession, "RemoteQuery": RemoteQuery}
"""Classes whose methods have a row in the table of other options for each optional parameter."""


def list_parameters(call: Callable[..., Any]) -> dict[str, str]:
    parameters = [parameter for parameter in inspect.signature(call).parameters.values() if parameter.name != "self"]
    return {parameter.name: format_default(parameter.default) for parameter in parameters}


def list_other_options() -> dict[str, str]:
    """Return the optional parameters of all other calls for which users set options: methods, sinks, `connect` and `function`."""
    calls = {name: getattr(hr, name) for name in hr.__all__ if name.endswith("Sink")}
    calls |= {"hr.connect": hr.connect, "hr.function": hr.function}
    for label, handle in HANDLES.items():
        methods = inspect.getmembers(handle, inspect.isfunction)
        calls |= {f"{label}.{name}": method for name, method in methods if not name.startswith("_")}
    return {
        f"{label}({name})": default
        for label, call in calls.items()
        if call not in CALLS.values() and label not in FOR_TOOLS
        for name, default in list_parameters(call).items()
        if default != REQUIRED
    }


def format_default(value: Any) -> str:
    """Return a default as Python text; functions and other objects have none that says anything."""
    if value is inspect.Parameter.empty:
        return REQUIRED
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool) or value is None:
        return str(value)
    return f"{value:_}" if isinstance(value, int | float) else NO_DEFAULT


def list_command_options() -> dict[str, dict[str, str]]:
    """Return the options and arguments of each command, by its name."""
    tables: dict[str, dict[str, str]] = {}
    for name in COMMANDS:
        root = typer.main.get_command(build_application(name))
        tables["headrace"] = dict(list_click_parameters(root))
        command = root.commands[name]
        for label, leaf in getattr(command, "commands", {"": command}).items():
            tables[f"headrace {name} {label}".strip()] = dict(list_click_parameters(leaf))
    return tables


def list_click_parameters(command: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            yield parameter.metavar or parameter.name.upper(), REQUIRED if parameter.required else NO_DEFAULT
        else:
            yield ", ".join(parameter.opts), format_option_default(parameter)


def format_option_default(parameter: Any) -> str:
    if parameter.is_flag:
        return "on" if parameter.default else "off"
    if parameter.default in (None, "", (), []):
        return NO_DEFAULT
    value = parameter.default.value if isinstance(parameter.default, enum.Enum) else parameter.default
    return f"{value:,}" if isinstance(value, int | float) and parameter.name != "port" else str(value)


def list_session_file_keys() -> dict[str, dict[str, str]]:
    """Return the keys of a session file, by the part of the file; defaults are those of the sources."""
    sources = {"files": hr.FileSource, "rate": hr.RateSource, "tcp": hr.TcpSource, "kafka": hr.KafkaSource}
    tables = {
        "Keys at the top": {
            **dict.fromkeys(("checkpoint", "rows_per_batch", "master", "partitions", "storage", "window_joins"), NO_DEFAULT),
            "functions": "true",
            "late_materialization": "auto",
            **dict.fromkeys(("join_slices", "join_slices_bytes"), NO_DEFAULT),
            **dict.fromkeys(session_file._CHANGE_KEYS, NO_DEFAULT),
        },
        "Keys of sliding_joins": {"plan": "auto", "target": "probes", "budget": NO_DEFAULT, "sharing": "true"},
        "Keys of spark": dict.fromkeys(session_file._SPARK_KEYS, NO_DEFAULT),
        "Keys of streams": {
            "source": "files",
            "time": REQUIRED,
            "watermark": "0 seconds",
            "max_ahead": NO_DEFAULT,
            "watermark_by": NO_DEFAULT,
            "idle": "10 seconds",
        },
        "Keys of queries": {"sql": REQUIRED, "sink": NO_DEFAULT, "sinks": NO_DEFAULT, "budget": NO_DEFAULT},
    }
    assert set(session_file._TOP_KEYS) == {*tables["Keys at the top"], "spark", "sliding_joins", "streams", "queries"}
    assert set(session_file._SLIDING_JOIN_KEYS) == set(tables["Keys of sliding_joins"])
    assert set(session_file._STREAM_KEYS) == set(tables["Keys of streams"])
    assert set(session_file._QUERY_KEYS) == set(tables["Keys of queries"])
    for kind, keys in source_options.SOURCE_OPTIONS.items():
        defaults = inspect.signature(sources[kind]).parameters
        tables[f"Keys of source {kind}"] = {
            key: REQUIRED if key in source_options.REQUIRED_OPTIONS[kind] else format_toml(defaults[key].default) for key in keys
        }
    return tables


def format_toml(value: Any) -> str:
    if value in (None, ""):
        return NO_DEFAULT
    return str(value).lower() if isinstance(value, bool) else str(value)


def list_declaration_keys() -> dict[str, dict[str, str]]:
    """Return the keys of `POST /v1/streams`: those of every source, and those of each."""
    models: dict[str, type[BaseModel]] = {
        "memory": declared_streams.MemoryStream,
        "files": declared_streams.FileStream,
        "rate": declared_streams.RateStream,
        "tcp": declared_streams.TcpStream,
        "kafka": declared_streams.KafkaStream,
    }
    tables = {kind: {name: format_field(field) for name, field in model.model_fields.items()} for kind, model in models.items()}
    common = {name: default for name, default in tables["memory"].items() if all(name in table for table in tables.values())}
    others = {kind: {name: table[name] for name in table if name not in common} for kind, table in tables.items()}
    by_source = {f"Source {kind} over HTTP": table for kind, table in others.items()}
    return {"Every source over HTTP": {**common, "source": REQUIRED}, **by_source}  # a request must name its source


def format_field(field: Any) -> str:
    if field.is_required():
        return REQUIRED
    if field.default_factory is dict:
        return NO_DEFAULT
    return "now" if field.default_factory else format_toml(field.default)


def list_service_limits() -> dict[str, str]:
    return {field.name: format_limit(field.name, field.default) for field in fields(ServiceLimits)}


def format_limit(name: str, value: Any) -> str:
    if value is None:
        return NO_DEFAULT
    if name.endswith("_s"):
        return f"{value} s"
    if name.endswith("_bytes"):
        unit, size = next((unit, size) for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)) if value >= size)
        assert value % size == 0
        return f"{value // size} {unit}"
    return f"{value:,}"


def list_sql_limits() -> dict[str, str]:
    modules = (limits, window_join, sliding_join, derived)
    constants = {name: value for module in modules for name, value in vars(module).items()}
    return {name: f"{value:,}" for name, value in constants.items() if name.startswith(("MAX_", "MIN_", "PARSER_"))}


def list_environment_variables() -> set[str]:
    """Return the variables that the package reads or sets, and those of commands."""
    pattern = re.compile(r'environ(?:\.get|\.setdefault)?[(\[]"([A-Z_]+)"|envvar="([A-Z_]+)"')
    names = set(ALLOCATOR_SETTINGS)
    for module in list_modules():
        if not str(module.path).endswith(OTHER_PROCESSES):
            names |= {first or second for first, second in pattern.findall(module.text)}
    return names


def read_tables(path: Path = DOCUMENT) -> dict[str, dict[str, str]]:
    """Return the tables of the document by heading: the code spans of the first cell → the default."""
    tables: dict[str, dict[str, str]] = {}
    heading = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip().replace("`", "")
        elif line.startswith("| `"):
            name, default = re.split(r"(?<!\\)\|", line.strip().strip("|"))[:2]
            table = tables.setdefault(heading, {})
            label = ", ".join(re.findall(r"`([^`]+)`", name)).replace("\\|", "|")
            assert label not in table, f"{heading}: {label} has two rows"
            table[label] = default.strip().strip("`")
    return tables


@cache
def expected_tables() -> dict[str, dict[str, str]]:
    return {
        **{heading: list_parameters(call) for heading, call in CALLS.items()},
        "Other calls": list_other_options(),
        **list_session_file_keys(),
        **list_command_options(),
        **list_declaration_keys(),
        "Limits of the service": list_service_limits(),
        "Limits of SQL": list_sql_limits(),
    }


@pytest.mark.parametrize("heading", sorted(expected_tables()))
def test_the_document_has_every_option_with_its_default(heading: str):
    expected = expected_tables()[heading]
    if expected:
        assert read_tables().get(heading) == expected


def test_the_document_has_every_environment_variable():
    assert set(read_tables()["Environment variables"]) == list_environment_variables()


def test_the_document_has_no_other_tables_of_options():
    assert set(read_tables()) <= {*expected_tables(), "Environment variables"}

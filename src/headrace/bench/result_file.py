"""The result document, `DIR/result.json`: {"format": 1, "runs": […]}, one line per run.

The document is replaced atomically after every run, so that a crash of the runner loses no completed run. `docs/benchmark.md`
describes the fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.bench.result import RESULT_FORMAT, BenchRun
from headrace.connectors.durable import replace_file
from headrace.errors import HeadraceError

RESULT_FILE = "result.json"
_COMMON_FIELDS = ("sut", "scenario", "queries", "repeat", "search", "started_at", "commit", "machine", "versions", "settings")
_FIGURE_FIELDS = (
    "offered_rows_per_second", "read_rows_per_second", "sustained", "sustainable_rows_per_second", "event_time_latency_s",
    "processing_time_latency_s", "deployment_latency_s", "query_throughput", "slowest_data_throughput", "slowest_query",
    "overall_data_throughput", "throughput", "resources",
)  # fmt: skip


def append_run(folder: Path, run: BenchRun) -> None:
    """Append a run to the document of a folder; create both if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RESULT_FILE
    runs = _read_document(path)["runs"] if path.exists() else []
    lines = ",\n".join(json.dumps(document, ensure_ascii=False, allow_nan=False) for document in [*runs, run.to_json()])
    replace_file(path, f'{{"format": {RESULT_FORMAT}, "runs": [\n{lines}\n]}}\n'.encode())


def read_runs(folder: Path) -> tuple[BenchRun, ...]:
    """Return all runs of a folder's document; raise HeadraceError for missing or unknown fields."""
    path = folder / RESULT_FILE
    return tuple(_parse_run(value, number, path) for number, value in enumerate(_read_document(path)["runs"], 1))


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "name a directory that `headrace bench run --out` wrote"
        raise HeadraceError(f"result '{path}' cannot be read", detail=error.strerror or str(error), hint=hint) from error
    except ValueError as error:
        raise HeadraceError(f"result '{path}' is not JSON", detail=str(error)) from error
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        raise HeadraceError(f"result '{path}' has no runs", hint='expected {"format": 1, "runs": […]}')
    if document.get("format") != RESULT_FORMAT:
        raise HeadraceError(f"result '{path}' has unknown format {document.get('format')!r}", detail=f"known: {RESULT_FORMAT}")
    return document


def _parse_run(value: Any, number: int, path: Path) -> BenchRun:
    where = f"run {number} of '{path}'"
    if not isinstance(value, dict):
        raise HeadraceError(f"{where} is not an object")
    _check_fields(value, where)
    try:
        return BenchRun.from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HeadraceError(f"{where} is damaged", detail=repr(error)) from error


def _check_fields(value: Mapping[str, Any], where: str) -> None:
    failed = "failed" in value
    needed = _COMMON_FIELDS if failed else (*_COMMON_FIELDS, *_FIGURE_FIELDS)
    missing = [name for name in needed if name not in value]
    if missing:
        raise HeadraceError(f"{where} lacks '{missing[0]}'", detail=f"missing: {', '.join(missing)}")
    unknown = [name for name in value if name not in needed and not (failed and name == "failed")]
    if unknown:
        problem = "a failed run has no figures" if failed else "a run has no such field"
        raise HeadraceError(f"{where} has '{unknown[0]}'", detail=problem)
    if not {"name", "title"} <= set(value["scenario"]):
        raise HeadraceError(f"{where} lacks the name or title of its scenario")

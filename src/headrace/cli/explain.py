"""`headrace explain SESSION.toml`: show the shared plan of the queries without running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.session_file import SessionFile
from headrace.cli.sharing import DEFAULT_PARTITIONS, SharedPlans, bind_queries, plan_queries
from headrace.errors import HeadraceError
from headrace.sharing.multiway.pictured import GRAPH_FORMATS


def command(
    file: Annotated[Path, typer.Argument(metavar="SESSION.toml", help="Streams and queries, in TOML.")],
    form: Annotated[str, typer.Argument(metavar="text|mermaid|svg", help="Format of --graph.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    as_graph: Annotated[bool, typer.Option("--graph", help="Show the data flow of joins in SLIDING windows.")] = False,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions, for the graph.")] = DEFAULT_PARTITIONS,
    out: Annotated[Path | None, typer.Option(help="Write to a file.")] = None,
) -> None:
    """Show the shared operators and the queries that use them; reads no data except the columns of files without a schema."""
    if (form and not as_graph) or (as_graph and as_json) or (form or "text") not in GRAPH_FORMATS:
        raise typer.BadParameter(f"--graph takes one of {', '.join(GRAPH_FORMATS)}, and excludes --json")
    sharing = plan_session_file(SessionFile.load(file), partitions)
    text = _render_plans(sharing, form or "text" if as_graph else "", as_json=as_json)
    if out is None:
        print(text, end="")
    else:
        _write_file(out, text)


def _render_plans(sharing: SharedPlans, form: str, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(sharing.to_json(), indent=2) + "\n"
    return sharing.render_graph(form) if form else sharing.to_text()


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise HeadraceError(f"cannot write file '{path}': {problem.strerror}") from None


def plan_session_file(file: SessionFile, partitions: int = DEFAULT_PARTITIONS) -> SharedPlans:
    """Bind all queries of a session file and plan them together; raises the errors that `run` would raise."""
    streams = [entry.to_stream() for entry in file.streams]
    return plan_queries(
        streams, bind_queries(streams, {query.name: query.sql for query in file.queries}, str(file.path)), partitions
    )

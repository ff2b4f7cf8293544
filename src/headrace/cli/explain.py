"""`headrace explain SESSION.toml`: what the queries share, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.session_file import SessionFile
from headrace.cli.sharing import Sharing, bind, share


def command(
    file: Annotated[Path, typer.Argument(metavar="SESSION.toml", help="Streams and queries, in TOML.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show each shared operator and which queries use it; reads no data (but the columns of files without a schema)."""
    sharing = sharing_of(SessionFile.load(file))
    print(json.dumps(sharing.to_json(), indent=2) if as_json else sharing.text(), end="\n" if as_json else "")


def sharing_of(file: SessionFile) -> Sharing:
    """Bind all queries of a session file and plan them together; raises what `run` would raise for a bad one."""
    streams = [entry.declare() for entry in file.streams]
    return share(streams, bind(streams, {query.name: query.sql for query in file.queries}, str(file.path)))

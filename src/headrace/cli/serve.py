"""`headrace serve`: one session, for everybody who can reach it."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.demo_queries import demo_queries
from headrace.cli.demo_streams import declare_demo
from headrace.cli.session_file import SessionFile
from headrace.cli.terminal import BackendName
from headrace.errors import HeadraceError
from headrace.service.host import Host
from headrace.service.limits import Limits
from headrace.service.loopback import is_loopback
from headrace.service.server import Server
from headrace.service.tokens import Tokens
from headrace.session import ROWS_PER_BATCH, Session

_DEMO_QUERIES = 6
_SWITCH_SECONDS = 0.0005


def command(
    file: Annotated[
        Path | None, typer.Argument(metavar="SESSION.toml", help="Streams and queries to begin with, in TOML.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; beyond loopback, tokens are needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.", min=0, max=65535)] = 8420,
    demo: Annotated[bool, typer.Option("--demo", help="Two streams that are made up, and a few queries.")] = False,
    backend: Annotated[BackendName, typer.Option(help="Where to run: Spark, or this process.")] = BackendName.spark,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Where all is kept; goes on where it stopped.")] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of role (read, write, admin), user and token.")
    ] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Refuse queries that would make micro-batches longer than this.")
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="What is taken on, as queries_per_user=50; may be given again."),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="A site whose pages may ask here, as https://board.example."),
    ] = None,
    reports: Annotated[
        Path, typer.Option(metavar="DIR", help="Where `headrace bench` keeps results: reports made of them can be read.")
    ] = Path("bench-out"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Say where it is served as one JSON object, on standard output.")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds from one micro-batch to the next, at least.", min=0)] = 0.25,
) -> None:
    """Serve a session over HTTP until Ctrl-C: streams, queries, live results, and the page that shows them.

    Killed at any point and started again with the same words, it goes on from its checkpoint: queries are there again, and
    readers go on where they were, no row twice and none left out.
    """
    spec = None if file is None else SessionFile.load(file, queries_needed=False)
    taken = Limits(latency_s=latency).with_given(limits or ())
    sites = [_site(one) for one in origins or ()]
    console = Console(stderr=True)
    backend.check()
    # The thread that drives micro-batches asks Spark for many small things; each time it waits for the interpreter, and while
    # readers are served that is as long as a thread may keep it, 5 ms by default.
    sys.setswitchinterval(_SWITCH_SECONDS)
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # else everybody's mistakes fill the log
    with contextlib.ExitStack() as stack:
        place = _checkpoint(spec, checkpoint, stack)
        given = None if tokens is None else Tokens.load(tokens.expanduser())
        listening = _listen(host, port)
        stack.callback(listening.close)
        console.print(f"starting on {backend.value} …", style="dim")
        rows = spec.rows_per_batch if spec and spec.rows_per_batch else ROWS_PER_BATCH
        master = (spec.master if spec else None) or "local[*]"
        session = stack.enter_context(Session(place, backend=backend.value, rows_per_batch=rows, master=master))
        _begin(session, spec, console, demo=demo)
        known = given or _tokens(host, place, console)
        served = Host(session, known, taken, interval=interval, reports=reports.expanduser(), origins=sites)
        address = f"http://{_shown(host)}:{listening.getsockname()[1]}"
        if as_json:
            print(json.dumps({"url": address, "checkpoint": str(place), "tokens": known.required}), flush=True)
        console.print(f"headrace serves [bold]{address}[/bold], to be opened in a browser; Ctrl-C ends it")
        with _ending():
            Server(served).run(sockets=[listening])


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Take Ctrl-C and a request to terminate for what they are here, the usual end: all is closed, and the exit code is 0."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _checkpoint(spec: SessionFile | None, given: Path | None, stack: contextlib.ExitStack) -> Path:
    if given is not None:
        return given.expanduser().absolute()
    if spec is not None and spec.checkpoint is not None:
        return spec.checkpoint
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-")))


def _tokens(host: str, checkpoint: Path, console: Console) -> Tokens:
    """Return the tokens to ask for without a file of them: none on loopback, and elsewhere some that are made."""
    if is_loopback(host):
        return Tokens()
    path = checkpoint / "tokens"
    if path.exists():
        return Tokens.load(path)
    made = Tokens.make(path)
    console.print(f"whoever asks needs a token: they were made, and are in {path}")
    return made


def _site(given: str) -> str:
    """Return an origin as browsers write it."""
    site = given.rstrip("/")
    scheme, colon, host = site.partition("://")
    if scheme not in {"http", "https"} or not colon or not host or set(host) & set("/?#*@ "):
        raise HeadraceError(f"'{given}' is no site", hint="write it as browsers do: https://board.example, or with a port")
    return site


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before Spark is started: nobody waits for an address that is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        hint = "choose another with --port, or end what listens there"
        raise HeadraceError(f"'{host}:{port}' cannot be listened on", detail=error.strerror or str(error), hint=hint) from error
    listening.listen(1024)
    return listening


def _begin(session: Session, spec: SessionFile | None, console: Console, *, demo: bool) -> None:
    """Declare streams, and add queries that never were there: one that was removed does not come back with a restart."""
    for stream in spec.streams if spec else ():
        session.create_stream(stream.name, stream.open(), time=stream.time, watermark=stream.watermark)
    queries = {query.name: query.sql for query in spec.queries} if spec else {}
    if demo:
        declare_demo(session)
        queries |= {query.name: query.sql for query in demo_queries(_DEMO_QUERIES)}
    for name, sql in queries.items():
        if session.find(name) is None:
            session.add(sql, name=name)
    if spec and any(query.sink for query in spec.queries):
        console.print("results are kept to be read here; the sinks that the file names are left alone", style="dim")

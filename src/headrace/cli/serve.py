"""`headrace serve`: serve a session over HTTP."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli import show_error
from headrace.cli.demo import declare_demo_streams, generate_queries
from headrace.cli.session_file import QueryEntry, SessionFile, StreamEntry
from headrace.cli.spark_options import ExchangeOption, MasterOption, SettingsOption, SparkOptions, StandbyOption
from headrace.cli.terminal import BackendName, parse_partitions_option
from headrace.connectors import MemorySink, NoopSink, Sink
from headrace.errors import HeadraceError, OwnershipLostError, SourceError
from headrace.logging import LogFormat, LogLevel, configure
from headrace.model.budget import QueryBudget
from headrace.service.admission import ServiceLimits
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.auth import TokenRegistry, is_loopback
from headrace.service.host import ServiceHost
from headrace.service.placeholder import serve_placeholder
from headrace.service.server import Server, load_tls_context
from headrace.session import ROWS_PER_BATCH, Session
from headrace.storage.locations import is_url, parse_local_path, parse_location

_DEMO_QUERIES = 6
_SWITCH_INTERVAL_SECONDS = 0.0005


def command(
    file: Annotated[Path | None, typer.Argument(metavar="SESSION.toml", help="Initial streams and queries, in TOML.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; tokens are required unless it is loopback.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free one.", min=0, max=65535)] = 8420,
    demo: Annotated[bool, typer.Option("--demo", help="Start with two generated streams and a few queries.")] = False,
    backend: Annotated[BackendName, typer.Option(help="Back-end: Spark, or this process (local).")] = BackendName.spark,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder or URL of the checkpoint, to resume from.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Token file: a role (read, write, write:all, admin), a user, a token and optional budgets on each line.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain, in PEM: serve HTTPS instead of HTTP.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of --tls-cert, in PEM, not encrypted.")] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Latency bound: reject queries that would make micro-batches longer.")
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="Set a limit, such as queries_per_user=50; repeatable."),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Allow a web origin (CORS), such as https://board.example; repeatable."),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="HOST[:PORT]", help="Let requests send results and secrets to this host or URL; repeatable."
        ),
    ] = None,
    allowed_roots: Annotated[
        list[str] | None,
        typer.Option("--allow-root", metavar="DIR", help="Let requests declare streams over files below DIR; repeatable."),
    ] = None,
    reports: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of `headrace bench` results, whose reports the page shows.")
    ] = "bench-out",
    budgets: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="NAME=NUMBER",
            help="What a query may use in a micro-batch, such as output_rows=1000000; repeatable.",
        ),
    ] = None,
    no_functions: Annotated[
        bool, typer.Option("--no-functions", help="Refuse a checkpoint that has functions, whose code would run in this service.")
    ] = False,
    partitions: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Key partitions; auto follows the cores and the load.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as a JSON object on standard output.")] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Form of log lines on standard error.")] = LogFormat.text,
    log_level: Annotated[LogLevel, typer.Option(help="Least level of log lines.")] = LogLevel.warning,
    interval: Annotated[float, typer.Option(help="Minimum seconds from one micro-batch to the next.", min=0)] = 0.25,
    master: MasterOption = None,
    conf: SettingsOption = None,
    exchange: ExchangeOption = None,
    standby: StandbyOption = False,
) -> None:
    """Serve a session over HTTP until Ctrl-C: streams, queries, live results, and a web page.

    After a crash at any point the same command with --checkpoint resumes: queries continue, and readers continue from their
    position, with every row exactly once. With --standby it waits while another process serves the checkpoint, and answers
    503 meanwhile; a service that has lost its checkpoint to another one becomes a standby again.
    """
    session_file = None if file is None else SessionFile.load(file, require_queries=False)
    service_limits = ServiceLimits(latency_s=latency).with_overrides(limits or ())
    allowed_origins = [_parse_origin(origin) for origin in origins or ()]
    spark = (SparkOptions() if session_file is None else session_file.spark).override(master, conf, exchange).to_arguments()
    chosen_partitions = parse_partitions_option(partitions)
    tls, budget = _load_tls(tls_cert, tls_key), QueryBudget.parse_texts(budgets or ())
    report_folder = parse_local_path(reports, "--reports")
    roots = [parse_local_path(root, "--allow-root") for root in allowed_roots or ()]
    console = Console(stderr=True)
    configure(log_format, log_level)
    backend.check_available()
    # The thread that drives micro-batches makes many small calls to Spark and reacquires the GIL after each. While readers are
    # served, that takes as long as a thread may hold the GIL: 5 ms by default.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # otherwise the errors of users fill the log
    with contextlib.ExitStack() as stack:
        folder = _choose_checkpoint(session_file, checkpoint, stack)
        token_file_tokens = None if tokens is None else TokenRegistry.load(tokens.expanduser())
        if token_file_tokens is None:
            _check_tokens(host, folder)
        sinks = {entry.name: _list_sinks(session_file, entry) for entry in session_file.queries} if session_file else {}
        AllowedRoots(roots, None)  # raises now, not when a standby takes over
        listening = _open_socket(host, port)
        stack.callback(listening.close)
        stack.enter_context(_exit_on_signal())
        console.print(f"starting on {backend.value} …", style="dim")
        rows = session_file.rows_per_batch if session_file and session_file.rows_per_batch else ROWS_PER_BATCH
        functions = not no_functions and (session_file is None or session_file.functions)
        open_session = partial(
            Session,
            folder,
            backend=backend.value,
            rows_per_batch=rows,
            functions=functions,
            budget=budget,
            storage_options=session_file.storage if session_file else None,
            partitions=chosen_partitions or (session_file.partitions if session_file else None),
            standby=standby,
            **(session_file.changes if session_file else {}),
            **(session_file.get_join_arguments() if session_file else {}),
            **spark,
        )
        address = f"{'http' if tls is None else 'https'}://{_format_host(host)}:{listening.getsockname()[1]}"

        def serve_session() -> None:
            with serve_placeholder(listening, tls) if standby else contextlib.nullcontext():
                session = open_session()
                session_stack.enter_context(session)
                detached = _install_session(session, session_file, sinks, demo=demo)
                accepted_tokens = token_file_tokens or _load_tokens(host, folder, console)
                service = ServiceHost(
                    session,
                    accepted_tokens,
                    service_limits,
                    interval=interval,
                    reports=report_folder,
                    origins=allowed_origins,
                    allowed_hosts=allowed_hosts or (),
                    allowed_roots=roots,
                )
                for entry, error in detached:
                    service.declared_streams.reattach_later(entry.name, error, partial(entry.declare, session))
            if as_json:
                print(json.dumps({"url": address, "checkpoint": folder, "tokens": accepted_tokens.required}), flush=True)
            console.print(f"headrace serves [bold]{address}[/bold], open it in a browser; Ctrl-C stops the service")
            if tls is None and not is_loopback(host):
                console.print("tokens and rows travel unencrypted; --tls-cert and --tls-key encrypt them", style="yellow")
            Server(service, tls, ends_on_loss=standby).run(sockets=[listening.dup()])

        is_over = False
        while not is_over:
            try:
                with contextlib.ExitStack() as session_stack:
                    serve_session()
                is_over = True
            except OwnershipLostError as error:
                if not standby:
                    raise
                show_error(error)
                console.print("waiting as a standby …", style="dim")


@contextlib.contextmanager
def _exit_on_signal() -> Iterator[None]:
    """Treat Ctrl-C and SIGTERM as the normal end of the service: close everything and exit with 0."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _choose_checkpoint(session_file: SessionFile | None, chosen: str | None, stack: contextlib.ExitStack) -> str:
    if chosen is not None:
        return parse_location(chosen)
    if session_file is not None and session_file.checkpoint is not None:
        return session_file.checkpoint
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))


def _load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise typer.BadParameter("--tls-cert and --tls-key need each other")
    return load_tls_context(certificate.expanduser(), key.expanduser())


def _check_tokens(host: str, checkpoint: str) -> None:
    """Raise before the session opens what `_load_tokens` would raise after it: a standby waits between the two."""
    if is_loopback(host):
        return
    if is_url(checkpoint):
        raise HeadraceError(
            "requests need a token, and tokens are not generated in an object store", hint="name a token file with --tokens FILE"
        )
    path = Path(checkpoint) / "tokens"
    if path.exists():
        TokenRegistry.load(path)


def _load_tokens(host: str, checkpoint: str, console: Console) -> TokenRegistry:
    """Return the tokens if no token file is given: none on loopback, otherwise those of a generated file."""
    if is_loopback(host):
        return TokenRegistry()
    path = Path(checkpoint) / "tokens"
    if path.exists():
        return TokenRegistry.load(path)
    created = TokenRegistry.create_file(path)
    console.print(f"requests need a token; generated tokens are in {path}")
    return created


def _parse_origin(text: str) -> str:
    """Return a web origin as browsers send it."""
    origin = text.rstrip("/")
    scheme, colon, host = origin.partition("://")
    if scheme not in {"http", "https"} or not colon or not host or set(host) & set("/?#*@ "):
        raise HeadraceError(
            f"invalid origin '{text}'",
            hint="write a scheme and a host, such as https://board.example or https://board.example:8443",
        )
    return origin


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _open_socket(host: str, port: int) -> socket.socket:
    """Bind the port before Spark starts, so that an address in use fails immediately."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        hint = "choose another port with --port, or stop the process that uses this one"
        raise HeadraceError(f"cannot listen on '{host}:{port}'", detail=error.strerror or str(error), hint=hint) from error
    listening.listen(1024)
    return listening


def _install_session(
    session: Session, session_file: SessionFile | None, sinks: Mapping[str, list[Sink]], *, demo: bool
) -> list[tuple[StreamEntry, SourceError]]:
    """Declare streams and add queries that the checkpoint has never had; a removed query is not added again.

    Return the streams that the checkpoint has, but whose source is gone: the service starts without them.
    """
    detached = []
    for entry in session_file.streams if session_file else ():
        try:
            entry.declare(session)
        except SourceError as error:
            if entry.name not in session.streams():
                raise
            detached.append((entry, error))
    entries = session_file.queries if session_file else ()
    queries = {entry.name: (entry.sql, entry.budget, sinks[entry.name]) for entry in entries}
    if demo:
        declare_demo_streams(session)
        queries |= {query.name: (query.sql, None, [MemorySink()]) for query in generate_queries(_DEMO_QUERIES)}
    for name, (sql, budget, own_sinks) in queries.items():
        if session.find(name) is None:
            session.add(sql, name=name, budget=budget, sinks=own_sinks)
    return detached


def _list_sinks(file: SessionFile, query: QueryEntry) -> list[Sink]:
    """Return the sinks of a query of the file: the service keeps its results, too."""
    return [MemorySink(), *(sink for sink in file.make_sinks(query, None) if not isinstance(sink, MemorySink | NoopSink))]

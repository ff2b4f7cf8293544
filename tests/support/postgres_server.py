"""A Postgres server on the loopback interface, for tests: a new cluster in a folder, run by a user that is not root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

_START_SECONDS = 30.0
_SETTINGS = {"unix_socket_directories": "", "shared_buffers": "16MB", "max_connections": "60", "log_min_messages": "warning"}


def find_programs() -> Path:
    """Return the folder of initdb and postgres; raises FileNotFoundError with what to install."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders or not (folders[-1] / "initdb").exists():
        raise FileNotFoundError("initdb of Postgres is not installed: apt-get install postgresql")
    return folders[-1]


class PostgresServer:
    """A server that keeps its port and its data when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        """Create a cluster in a folder."""
        self.folder, self._programs = folder / "data", find_programs()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._user = "postgres" if os.geteuid() == 0 else None
        for parent in (folder, *folder.parents) if self._user else ():
            with contextlib.suppress(PermissionError):
                parent.chmod(parent.stat().st_mode | 0o011)
        if self._user:
            shutil.chown(folder, self._user, self._user)
        self._run("initdb", "-D", str(self.folder), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd="/", timeout=60)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = [f"-c{name}={value}" for name, value in {**_SETTINGS, "port": str(self.port)}.items()]
        command: Sequence[str] = [str(self._programs / "postgres"), "-D", str(self.folder), "-h", "127.0.0.1", *settings]
        with (self.folder.parent / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, user=self._user, cwd="/", start_new_session=True)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End the server and its processes at once, as a loss of power would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            (self.folder / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # at once
            self._process.wait(20)
            self._process = None

    def query(self, text: str) -> list[tuple[object, ...]]:
        """Return the rows of a statement."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def run_postgres(folder: Path) -> Iterator[PostgresServer]:
    """Run a server until the end of the block."""
    server = PostgresServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()

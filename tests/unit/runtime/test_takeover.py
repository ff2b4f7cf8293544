"""Two drivers on one checkpoint in an object store: one is paused at any write, another one takes over, the first wakes up.

A   log 3 · run · commit ┊ (paused before the request is sent)          commit 3: refused, A says why
B                        ┊ takes the lease · recovers · runs some batches
C                                                                       takes over from both, runs to the end

No batch is committed twice, nothing that a later owner needs is deleted, and the results are those of one session.
"""

from __future__ import annotations

import random
import uuid
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.backends.local import LocalBackend
from headrace.connectors.pending_files import open_sink_store
from headrace.errors import CheckpointError, HeadraceError, OwnershipLostError, SessionError
from headrace.storage import checkpoint_lock, documents
from headrace.storage.lease import Lease
from headrace.storage.object_store import ObjectStore
from support.every_kind_session import write_file
from support.examples import choose_examples

QUERIES = {
    "hop": "SELECT window_start, k, SUM(n) AS s FROM HOP(f, '6 seconds', '3 seconds') WHERE n > 3 GROUP BY k",
    "rows": "SELECT k, n FROM f WHERE n % 3 = 0",
    "join": "SELECT a.n AS an, b.n AS bn FROM SLIDING(f, '1 second') a JOIN SLIDING(f, '1 second') b ON a.k = b.k AND a.n < b.n",
    "sums": "SELECT window_start, k, SUM(n) AS s FROM TUMBLE(f, '2 seconds') GROUP BY k",
    "files": "SELECT k, n FROM f WHERE n > 5",
}
FILE_QUERIES = ("sums", "files")
BATCHES = 6


class RaceClock:
    """One clock for the leases of all sessions; whoever waits for a lease makes it go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Requests:
    """Counts the changing requests, and calls `at_step` before one of them is sent; records the manifests that were put."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.step, self.at_step = 0, -1, lambda: None  # type: tuple[int, int, Callable[[], object]]
        self.manifests: list[tuple[int, str]] = []
        put, delete = ObjectStore._put, ObjectStore.delete_many

        def put_counted(store: ObjectStore, key: str, *args: Any) -> Any:
            self._count()
            result = put(store, key, *args)
            if key == "manifest/current.json":
                state = documents.decode_record(store, key, args[0])
                self.manifests.append((state.batch, state.writer))
            return result

        def delete_counted(store: ObjectStore, keys: Any) -> None:
            self._count()
            delete(store, keys)

        monkeypatch.setattr(ObjectStore, "_put", put_counted)
        monkeypatch.setattr(ObjectStore, "delete_many", delete_counted)

    def _count(self) -> None:
        self.count += 1
        if self.count - 1 == self.step:
            self.at_step()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Requests:
    """Sessions whose leases have a common clock and no thread, so that a run always makes the same requests."""
    clock = RaceClock()
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    lease_type = partial(Lease, clock=clock.read, sleep=clock.sleep)
    monkeypatch.setattr("headrace.storage.lease.Lease", lease_type)
    monkeypatch.setattr(Lease, "start_renewals", lambda self: None)
    monkeypatch.setattr(checkpoint_lock, "Lease", lease_type, raising=False)
    (tmp_path / "files").mkdir()
    for batch in range(BATCHES):
        write_file(tmp_path / "files", batch)
    return Requests(monkeypatch)


def open_session(url: str, folder: Path) -> hr.Session:
    session = hr.Session(url, backend="local", partitions=2, rows_per_batch=20)
    session.create_stream("f", hr.FileSource(folder / "files"), time="time", watermark="1 second")
    if session.last_batch < 0 and not session.queries():
        for name, sql in QUERIES.items():
            session.add(sql, name=name, sink=f"jsonl:{url}-{name}" if name in FILE_QUERIES else None)
    return session


def read_rows(session: hr.Session, url: str, name: str) -> list[str]:
    """The rows of a query: those that the session keeps, or those of the visible files of its sink."""
    if name not in FILE_QUERIES:
        return sorted(repr(tuple(row.values())) for row in session.query(name).results().to_pylist())
    store = open_sink_store(f"{url}-{name}")
    return sorted(line.decode() for key in store.list("") for line in store.get(key).splitlines())


def run_batches(session: hr.Session, count: int = 100) -> None:
    """Run up to `count` batches, as long as there are rows."""
    while count and session.has_work():
        session.advance()
        count -= 1


def finish(url: str, folder: Path) -> dict[str, list[str]]:
    """Take the checkpoint over, run to the end, and return the rows of every query."""
    with open_session(url, folder) as session:
        run_batches(session)
        session.drain()
        return {name: read_rows(session, url, name) for name in QUERIES}


def check_history(manifests: list[tuple[int, str]]) -> None:
    """Check that one batch after the other was committed, each once; a new owner publishes the newest manifest again."""
    for (batch, writer), (next_batch, next_writer) in pairwise(manifests):
        assert next_batch == batch + (writer == next_writer), f"a batch was committed twice, or left out: {manifests}"


def run_race(folder: Path, requests: Requests, step: int, batches: int) -> tuple[dict[str, list[str]], str]:
    """Pause a session before its request number `step`, let another one run some batches; return results and its error."""
    url = f"memory://{uuid.uuid4().hex}"
    requests.count, requests.step, requests.manifests = 0, -1, []
    first, error = open_session(url, folder), ""

    def take_over() -> None:
        requests.step = -1
        second = open_session(url, folder)
        run_batches(second, batches)

    requests.step, requests.at_step = requests.count + step, take_over
    try:
        run_batches(first)
    except HeadraceError as problem:
        error = f"{type(problem).__name__}: {problem}"
    requests.step = -1
    results = finish(url, folder)
    check_history(requests.manifests)
    return results, error


@pytest.fixture
def expected(tmp_path: Path, requests: Requests) -> dict[str, list[str]]:
    """The results of one session that nobody disturbs, and the number of its requests."""
    url = f"memory://{uuid.uuid4().hex}"
    session = open_session(url, tmp_path)
    before = requests.count
    run_batches(session)
    requests.total = requests.count - before  # type: ignore[attr-defined]
    session.close()
    return finish(url, tmp_path)


def test_the_results_are_those_of_one_session_wherever_a_driver_is_paused(
    expected: dict[str, list[str]], requests: Requests, tmp_path: Path
):
    total: int = requests.total  # type: ignore[attr-defined]
    cases = [(step, batches) for step in range(total) for batches in range(BATCHES + 1)]
    chosen = choose_examples(cases, 60, random.Random(7))
    losses = 0
    for step, batches in chosen:
        results, error = run_race(tmp_path, requests, step, batches)
        assert results == expected, (step, batches)
        assert not error or "another session" in error or "no longer owns the checkpoint" in error, error
        losses += bool(error)
    assert losses > len(chosen) // 2


def test_a_session_that_lost_its_lease_says_who_has_it(requests: Requests, tmp_path: Path):
    url = f"memory://{uuid.uuid4().hex}"
    first = open_session(url, tmp_path)
    first.advance()
    second = open_session(url, tmp_path)
    with pytest.raises(CheckpointError, match=r"no longer owns the checkpoint(.|\n)*epoch 2 has taken it over"):
        first.advance()
    run_batches(second)
    second.close()
    first.close()


def test_an_idle_session_notices_the_loss_stops_and_releases_its_workers(
    requests: Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The thread that renews the lease learns of the takeover; no batch is needed for the session to end."""
    closed: list[LocalBackend] = []
    monkeypatch.setattr(LocalBackend, "close", lambda backend: closed.append(backend))  # noqa: PLW0108  bound to it
    url = f"memory://{uuid.uuid4().hex}"
    first = open_session(url, tmp_path)
    run_batches(first)
    first.start()
    second = open_session(url, tmp_path)
    assert first.loss is None
    first._checkpoint._lock._renew()
    with pytest.raises(SessionError, match=r"stopped because of an error(.|\n)*epoch 2 has taken it over"):
        first.wait(lambda: False, 10)
    first._loop._thread.join(10)
    assert closed == [first._backend]
    for call in (first.advance, lambda: first.add("SELECT k FROM f"), first.close):
        with pytest.raises(OwnershipLostError, match="epoch 2 has taken it over"):
            call()
    second.close()

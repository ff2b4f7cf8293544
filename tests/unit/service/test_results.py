"""Results over HTTP: pages, server-sent events, sockets; every row once, and no client delays another."""

from __future__ import annotations

import io
import json
import socket
import threading
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from types import SimpleNamespace

import pyarrow as pa
import pytest
from websockets.sync.client import connect

from headrace.service import subscriptions
from headrace.service.admission import ServiceLimits
from headrace.service.result_pages import BEGINNING
from headrace.storage.posix import PosixStore
from support.in_process_service import Service, parse_events, wait_until

ROWS = "SELECT price FROM purchases"


def append_when_a_reader_waits(service: Service, monkeypatch: pytest.MonkeyPatch, second: float) -> threading.Thread:
    """Append a row as soon as a request waits for a micro-batch; return the thread that appends it."""
    notifier, thread = service.host.notifier, threading.Thread(target=service.append, args=[second])
    wait_after = notifier.wait_after

    async def append_and_wait(batch: int, seconds: float) -> bool:
        monkeypatch.setattr(notifier, "wait_after", wait_after)
        thread.start()
        return await wait_after(batch, seconds)

    monkeypatch.setattr(notifier, "wait_after", append_and_wait)
    return thread


def add_when_notified(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a query by a request that is answered only if a micro-batch notifies it: the client gives up before the service."""
    monkeypatch.setattr("headrace.service.host._POLL_SECONDS", 60.0)
    assert service.http.post("/v1/queries", json={"sql": ROWS}, params={"wait": 60}).json()["status"] == "live"


def connect_with_small_buffers(service: Service) -> socket.socket:
    """Connect and request the live events of query rows; the kernel buffers a few kilobytes in either direction."""
    service.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted connections inherit it
    connection = socket.socket()
    connection.settimeout(20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    connection.sendall(b"GET /v1/queries/rows/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return connection


def read_pages(service: Service, name: str, limit: int) -> list[list[float]]:
    prices, after = [], "beginning"
    while True:
        page = service.http.get(f"/v1/queries/{name}/results", params={"after": after, "limit": limit}).json()
        prices.append([row[0] for row in page["rows"]])
        after = page["next"]
        if not page["more"]:
            return prices


@contextmanager
def open_events(service: Service, name: str, **params: object):
    with service.http.stream("GET", f"/v1/queries/{name}/live", params=params) as answer:
        assert answer.status_code == 200
        yield parse_events(answer)


def test_pages_have_every_row_once(service: Service):
    service.add(ROWS, name="rows")
    for number in range(5):
        service.append(*range(number * 10, number * 10 + 7), price=float(number))
        service.wait_for_rows("rows", 7 * (number + 1))
    for limit in (1, 3, 7, 10, 1000):
        prices = read_pages(service, "rows", limit)
        assert sorted(price for page in prices for price in page) == [float(n) for n in range(5) for _ in range(7)]
        assert all(len(page) <= limit for page in prices)


def test_pages_are_served_as_arrow(service: Service):
    service.add(name="counts")
    service.append(0.5, 0.7, 3.5)
    service.wait_for_rows("counts", 1)
    accepting = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = service.http.get("/v1/queries/counts/results", headers=accepting)
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert table.column("n").to_pylist() == [2]
    assert str(table.schema.field("window_start").type) == "timestamp[us, tz=UTC]"
    assert answer.headers["X-Headrace-More"] == "false"


def test_a_page_waits_for_its_first_row(service: Service, monkeypatch: pytest.MonkeyPatch):
    service.add(ROWS, name="rows")
    appending = append_when_a_reader_waits(service, monkeypatch, 1.0)
    page = service.http.get("/v1/queries/rows/results", params={"wait": 60}).json()  # the client waits at most 20 s
    appending.join()
    assert page["rows"] == [[10.0]]
    assert service.http.get("/v1/queries/rows/results", params={"after": page["next"], "wait": 0.01}).json()["rows"] == []


def test_events_deliver_new_rows_and_resume_by_id(service: Service):
    service.add(ROWS, name="rows")
    with open_events(service, "rows") as events:
        kind, _, columns = next(events)
        assert (kind, columns) == ("columns", [{"name": "price", "type": "DOUBLE"}])
        service.append(1.0, price=7.0)
        kind, first, data = next(events)
        assert (kind, data) == ("rows", {"rows": [[7.0]], "left_out": 0})
    service.append(2.0, price=8.0)  # while no client is connected
    service.wait_for_rows("rows", 2)
    with service.http.stream("GET", "/v1/queries/rows/live", headers={"Last-Event-ID": first}) as answer:
        events = parse_events(answer)
        next(events)
        assert next(events)[2]["rows"] == [[8.0]]
        service.http.delete("/v1/queries/rows")
        kind, _, data = next(events)
        assert (kind, data) == ("end", {"status": "removed", "error": ""})
        with pytest.raises(StopIteration):
            next(events)


def test_an_idle_reader_receives_heartbeats(service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subscriptions, "_HEARTBEAT_SECONDS", 0.02)
    service.add(ROWS, name="rows")
    with open_events(service, "rows") as events:
        assert [next(events)[0] for _ in range(3)] == ["columns", "quiet", "quiet"]
        service.append(1.0, price=7.0)
        assert next(data["rows"] for kind, _, data in events if kind == "rows") == [[7.0]]


def test_a_sample_reports_the_number_of_rows_left_out(service: Service):
    service.add(ROWS, name="rows")
    with open_events(service, "rows", sample=3) as events:
        next(events)
        service.append(*(number / 100 for number in range(50)))
        seen = left_out = 0
        while seen + left_out < 50:
            _, _, data = next(events)
            assert len(data["rows"]) <= 3
            seen, left_out = seen + len(data["rows"]), left_out + data["left_out"]
        assert (seen + left_out, left_out > 0) == (50, True)


def test_a_socket_delivers_the_same_events(service: Service):
    service.add(ROWS, name="rows")
    service.append(1.0, price=7.0)
    service.wait_for_rows("rows", 1)
    address = service.url.replace("http", "ws")
    with connect(f"{address}/v1/queries/rows/socket?from=beginning") as socket:
        assert json.loads(socket.recv())["event"] == "columns"
        message = json.loads(socket.recv())
        assert (message["event"], message["data"]["rows"]) == ("rows", [[7.0]])
        service.http.delete("/v1/queries/rows")
        assert json.loads(socket.recv())["event"] == "end"


def test_readers_resume_at_their_position_after_a_restart(service: Service):
    service.add(ROWS, name="rows")
    service.append(1.0, 2.0, price=1.0)
    service.wait_for_rows("rows", 2)
    page = service.http.get("/v1/queries/rows/results").json()
    service.restart()
    assert [(query["name"], query["status"]) for query in service.http.get("/v1/queries").json()] == [("rows", "live")]
    service.append(3.0, price=2.0)
    service.wait_for_rows("rows", 3)
    assert service.http.get("/v1/queries/rows/results", params={"after": page["next"]}).json()["rows"] == [[2.0]]
    assert sorted(price for page in read_pages(service, "rows", 2) for price in page) == [1.0, 1.0, 2.0]


def test_a_stalled_reader_does_not_block_the_service(service: Service):
    service.add("SELECT price, user_id, gem_pack, time FROM purchases", name="rows")
    with connect_with_small_buffers(service) as connection:
        assert connection.recv(10)  # it never reads on; the rows exceed the buffers
        for number in range(4):
            service.append(*(number + place / 1000 for place in range(500)))
            service.wait_for_rows("rows", 500 * (number + 1))
        assert service.http.get("/v1/health").json()["status"] == "ok"


def evict_results(service: Service) -> None:
    """Let a micro-batch without results delete all earlier ones."""
    service.add("SELECT price FROM purchases WHERE price < 0", name="none")


def test_evicted_results_are_reported_as_missed(serve):
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="rows")
    for second in range(3):
        service.append(second, price=float(second))
        service.wait_for_rows("rows", second + 1)
    page = service.http.get("/v1/queries/rows/results").json()
    assert (page["rows"], page["missed"]) == ([[2.0]], True)  # the newest batch is always kept
    with open_events(service, "rows", **{"from": "beginning"}) as events:
        assert next(events)[0] == "columns"
        kind, position, data = next(events)
        assert (kind, data["to"]) == ("missed", position)
        assert next(events)[2]["rows"] == [[2.0]]
        service.append(9.0, price=9.0)
        assert next(events)[2]["rows"] == [[9.0]]
    assert service.http.get("/v1/queries/rows/results", params={"after": page["next"]}).json()["missed"] is False
    service.restart()
    assert service.http.get("/v1/queries/rows/results").json()["missed"] is True


def test_rows_evicted_during_a_read_are_reported_as_missed(service: Service, monkeypatch: pytest.MonkeyPatch):
    service.add(ROWS, name="rows")
    for second in range(3):
        service.append(second, price=float(second))
        service.wait_for_rows("rows", second + 1)
    pages, reader, query = service.host.result_pages, service.session.result_reader, service.session.query("rows")
    open_file = reader._open_file

    def evict_and_open(file):
        monkeypatch.setattr(reader, "_open_file", open_file)
        service.session.retain_results(max_bytes=1)
        service.append(9.0, price=9.0)
        service.wait_for_rows("rows", 4)
        return open_file(file)

    monkeypatch.setattr(reader, "_open_file", evict_and_open)
    page = pages.read(query, BEGINNING, 1000)
    assert (page.rows["price"].to_pylist(), page.missed) == ([9.0], True)


def test_a_waiting_page_reports_missed_rows(serve, monkeypatch: pytest.MonkeyPatch):
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="rows")
    service.append(1.0)
    service.wait_for_rows("rows", 1)
    evict_results(service)
    appending = append_when_a_reader_waits(service, monkeypatch, 2.0)
    page = service.http.get("/v1/queries/rows/results", params={"wait": 60}).json()
    appending.join()
    assert (page["rows"], page["missed"]) == ([[10.0]], True)


def test_bad_positions_are_refused(service: Service):
    service.add(ROWS, name="rows")
    for bad in ("x", "1", "1.x", "-1.0", "٣.٠", "9" * 40 + ".0"):
        assert service.http.get("/v1/queries/rows/results", params={"after": bad}).status_code == 422
    assert service.http.get("/v1/queries/rows/results", params={"limit": 0}).status_code == 422
    assert service.http.get("/v1/queries/none/live").status_code == 404
    assert service.http.get("/v1/queries/rows/results", params={"after": "99999.0"}).json()["rows"] == []


def test_metrics_count_the_readers(service: Service):
    service.add(ROWS, name="rows")
    with open_events(service, "rows") as events:
        next(events)
        assert "headrace_readers 1.0" in service.http.get("/metrics").text
    service.append(1.0)  # the next write detects the disconnected reader
    wait_until(lambda: "headrace_readers 0.0" in service.http.get("/metrics").text)


def test_pages_can_start_at_the_last_rows(service: Service):
    service.add(ROWS, name="rows")
    service.append_and_wait(1, 2, 3)
    service.append(4, 5, price=4.0)
    service.wait_for_rows("rows", 5)

    def read_last(count: int) -> list[float]:
        page = service.http.get("/v1/queries/rows/results", params={"after": f"last-{count}"}).json()
        assert not page["missed"]
        return [row[0] for row in page["rows"]]

    assert [read_last(count) for count in (0, 1, 3, 5, 99)] == [
        [],
        [4.0],
        [10.0, 4.0, 4.0],
        [10.0] * 3 + [4.0] * 2,
        [10.0] * 3 + [4.0] * 2,
    ]
    answer = service.http.get("/v1/queries/rows/results", params={"after": "last-x"})
    assert answer.status_code == 422
    service.add(ROWS, name="none")
    assert service.http.get("/v1/queries/none/results", params={"after": "last-5"}).json()["rows"] == []


def test_last_rows_that_were_evicted_are_not_missed(serve):
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="rows")
    service.append_and_wait(1, 2)
    evict_results(service)
    page = service.http.get("/v1/queries/rows/results", params={"after": "last-5"}).json()
    assert (page["rows"], page["missed"]) == ([], False)


def test_events_can_start_at_the_last_rows(service: Service):
    service.add(ROWS, name="rows")
    service.append_and_wait(1, 2)
    service.append(3, price=3.0)
    service.wait_for_rows("rows", 3)
    with service.http.stream("GET", "/v1/queries/rows/live", params={"from": "last-2"}) as answer:
        rows = next(data["rows"] for kind, _, data in parse_events(answer) if kind == "rows")
    assert rows in ([[10.0], [3.0]], [[10.0]])  # each batch may be a separate event


def test_results_of_a_late_query_start_at_its_first_batch(serve, monkeypatch):
    """Batches before the query are not read, and their eviction is not reported as missed."""
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="early")
    service.append_and_wait(1, 2, 3)
    evict_results(service)
    service.add(ROWS, name="late")
    service.append(4, price=4.0)
    service.wait_for_rows("late", 1)
    loaded = []
    reader = service.session.result_reader
    open_file = reader._open_file
    monkeypatch.setattr(reader, "_open_file", lambda file: loaded.append(file.first_batch) or open_file(file))
    page = service.http.get("/v1/queries/late/results").json()
    assert (page["rows"], page["missed"]) == ([[4.0]], False)
    assert min(loaded) >= service.session.query("late").first_batch > 2
    assert service.http.get("/v1/queries/early/results").json()["missed"]


def test_no_folder_is_listed(service: Service, monkeypatch):
    service.add(ROWS, name="rows")
    service.append_and_wait(1)
    service.wait_for_rows("rows", 1)
    listings = []
    monkeypatch.setattr(PosixStore, "list", lambda _, prefix: listings.append(prefix) or [])
    assert read_pages(service, "rows", 10) == [[10.0]]
    service.append_and_wait(2, 3)
    service.wait_for_rows("rows", 3)
    assert read_pages(service, "rows", 10) == [[10.0, 10.0, 10.0]]
    assert listings == []


def test_readers_are_notified_in_rounds_and_delay_no_other_request(service: Service, monkeypatch):
    """The reader's CPU share is nearly zero here, so that the next round is an hour away; the test starts one by hand."""
    notifier = service.host.notifier
    monkeypatch.setattr("headrace.service.notifier._READER_CPU_SHARE", 1e-9)
    monkeypatch.setattr("headrace.service.notifier._MAX_ROUND_DELAY_SECONDS", 3600.0)
    service.add(ROWS, name="rows")
    with open_events(service, "rows") as events:
        assert next(events)[0] == "columns"
        wait_until(lambda: service.host.subscriptions._idle)
        for number in range(5):
            service.append(number, price=float(number))
            add_when_notified(service, monkeypatch)
        notifier._loop.call_soon_threadsafe(notifier._start_round)
        assert next(events)[2]["rows"] == [[float(number)] for number in range(5)]
        monkeypatch.setattr("headrace.service.notifier._MAX_ROUND_DELAY_SECONDS", 0.01)
        service.append(9, price=9.0)
        assert next(events)[2]["rows"] == [[9.0]]


def test_a_batch_that_is_committed_but_not_finished_is_not_forgotten(service: Service, monkeypatch: pytest.MonkeyPatch):
    """After a commit the session updates its queries and only then notifies; meanwhile the notifier looks several times."""
    waits: list[object] = []
    wait, advance = service.session.wait, service.session._coordinator.advance

    def record_and_wait(condition, seconds):
        waits.append(condition)
        return wait(condition, seconds)

    def advance_slowly(**options):
        report, before = advance(**options), len(waits)
        wait_until(lambda: len(waits) > before + 2)
        return report

    monkeypatch.setattr(service.session, "wait", record_and_wait)
    monkeypatch.setattr(service.session._coordinator, "advance", advance_slowly)
    add_when_notified(service, monkeypatch)


def read_prices(answer, count: int) -> list[float]:
    prices: list[float] = []
    for kind, _, data in parse_events(answer):
        if kind == "rows":
            prices.extend(row[0] for row in data["rows"])
        if len(prices) >= count:
            return prices
    return prices


def test_idle_readers_are_written_to_without_being_woken(service: Service, monkeypatch):
    woken: list[str] = []
    send = subscriptions._SseChannel.send

    async def record_and_send(self, events):
        woken.extend(event.kind for event in events)
        await send(self, events)

    monkeypatch.setattr(subscriptions._SseChannel, "send", record_and_send)
    service.add(ROWS, name="rows")
    with ExitStack() as stack:
        answers = [stack.enter_context(service.http.stream("GET", "/v1/queries/rows/live")) for _ in range(5)]
        wait_until(lambda: len(service.host.subscriptions._idle) == 5)
        service.append_and_wait(*range(5))
        assert [read_prices(answer, 5) for answer in answers] == [[10.0] * 5] * 5
    assert woken.count("columns") == 5
    assert "rows" not in woken


def test_fast_and_slow_readers_receive_every_row_once(service: Service, monkeypatch):
    """Slow readers are woken and read on by themselves; the rows exceed the socket buffers."""
    sent: list[bool] = []
    try_send = subscriptions._SseChannel.try_send

    def record_and_try_send(self, message):
        sent.append(try_send(self, message))
        return sent[-1]

    monkeypatch.setattr(subscriptions._SseChannel, "try_send", record_and_try_send)
    wide = ", ".join(f"price AS price{number}" for number in range(20))
    service.add(f"SELECT price, {wide} FROM purchases", name="rows")
    batches, size, seen = 10, 100, {}
    prices = [number + 0.123456789012 for number in range(batches)]

    def read(number: int) -> None:
        with connect_with_small_buffers(service) as connection:
            answer = HTTPResponse(connection)
            answer.begin()
            begun.wait()
            if number % 2:
                appended.wait()
            lines = (line.decode().rstrip("\n") for line in answer)
            seen[number] = read_prices(SimpleNamespace(iter_lines=lambda: lines), batches * size)

    begun, appended = threading.Barrier(5), threading.Event()
    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    for price in prices:
        service.append(*([price] * size), price=price)
        wait_until(lambda: len(sent) >= 4)  # the first batch has been written to all readers
    service.wait_for_rows("rows", batches * size)
    appended.set()
    for thread in threads:
        thread.join(60)
    assert [sorted(seen[number]) for number in range(4)] == [[price for price in prices for _ in range(size)]] * 4
    assert {True, False} == set(sent)


def test_an_http_1_0_client_receives_unchunked_events(service: Service):
    service.add(ROWS, name="rows")
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(b"GET /v1/queries/rows/live HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        response = b""
        while b"event: columns" not in response:
            response += connection.recv(1 << 16)
        service.append(1, price=7.0)
        while b"7.0" not in response:
            response += connection.recv(1 << 16)
    body = response.partition(b"\r\n\r\n")[2].decode()
    assert {line.partition(": ")[0] for line in body.splitlines()} <= {"event", "id", "data", ""}


def test_readers_that_disconnect_at_once_are_not_counted(service: Service):
    service.add(ROWS, name="rows")
    request = b"GET /v1/queries/rows/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(request)
    service.http.get("/v1/health")
    wait_until(lambda: service.host.reader_count == 0)

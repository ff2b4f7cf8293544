"""Results over HTTP: pages, events, sockets; no row twice, none left out, nobody waits for anybody."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from types import SimpleNamespace

import pyarrow as pa
import pytest
from websockets.sync.client import connect

from headrace.service import subscriptions
from headrace.service.admission import ServiceLimits
from headrace.service.result_log import BEGINNING
from support.in_process_service import Service, parse_events

ROWS = "SELECT price FROM purchases"


def settle(service: Service, name: str, rows: int) -> None:
    until = time.monotonic() + 20
    while service.http.get(f"/v1/queries/{name}").json()["emitted"] < rows:
        assert time.monotonic() < until
        time.sleep(0.02)


def pages(service: Service, name: str, limit: int) -> list[list[float]]:
    found, after = [], "beginning"
    while True:
        page = service.http.get(f"/v1/queries/{name}/results", params={"after": after, "limit": limit}).json()
        found.append([row[0] for row in page["rows"]])
        after = page["next"]
        if not page["more"]:
            return found


@contextmanager
def following(service: Service, name: str, **given: object):
    with service.http.stream("GET", f"/v1/queries/{name}/live", params=given) as answer:
        assert answer.status_code == 200
        yield parse_events(answer)


def test_pages_have_every_row_once(service: Service):
    service.add(ROWS, name="rows")
    for number in range(5):
        service.append(*range(number * 10, number * 10 + 7), price=float(number))
        settle(service, "rows", 7 * (number + 1))
    for limit in (1, 3, 7, 10, 1000):
        found = pages(service, "rows", limit)
        assert sorted(price for page in found for price in page) == [float(n) for n in range(5) for _ in range(7)]
        assert all(len(page) <= limit for page in found)


def test_pages_can_be_arrow(service: Service):
    service.add(name="counts")
    service.append(0.5, 0.7, 3.5)
    settle(service, "counts", 1)
    accepting = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = service.http.get("/v1/queries/counts/results", headers=accepting)
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert table.column("n").to_pylist() == [2]
    assert str(table.schema.field("window_start").type) == "timestamp[us, tz=UTC]"
    assert answer.headers["X-Headrace-More"] == "false"


def test_a_page_waits_for_its_first_row(service: Service):
    service.add(ROWS, name="rows")
    timer = threading.Timer(0.5, service.append, [1.0])
    timer.start()
    begun = time.monotonic()
    page = service.http.get("/v1/queries/rows/results", params={"wait": 20}).json()
    timer.join()
    assert page["rows"] == [[10.0]]
    assert 0.3 < time.monotonic() - begun < 15
    assert service.http.get("/v1/queries/rows/results", params={"after": page["next"], "wait": 0.1}).json()["rows"] == []


def test_events_come_as_rows_do(service: Service):
    service.add(ROWS, name="rows")
    with following(service, "rows") as found:
        kind, _, columns = next(found)
        assert (kind, columns) == ("columns", [{"name": "price", "type": "DOUBLE"}])
        service.append(1.0, price=7.0)
        kind, first, data = next(found)
        assert (kind, data) == ("rows", {"rows": [[7.0]], "left_out": 0})
    service.append(2.0, price=8.0)  # while nobody looks
    settle(service, "rows", 2)
    with service.http.stream("GET", "/v1/queries/rows/live", headers={"Last-Event-ID": first}) as answer:
        found = parse_events(answer)
        next(found)
        assert next(found)[2]["rows"] == [[8.0]]
        service.http.delete("/v1/queries/rows")
        kind, _, data = next(found)
        assert (kind, data) == ("end", {"status": "removed", "error": ""})
        with pytest.raises(StopIteration):
            next(found)


def test_a_sample_says_how_much_it_left_out(service: Service):
    service.add(ROWS, name="rows")
    with following(service, "rows", sample=3) as found:
        next(found)
        service.append(*(number / 100 for number in range(50)))
        seen = left_out = 0
        while seen + left_out < 50:
            _, _, data = next(found)
            assert len(data["rows"]) <= 3
            seen, left_out = seen + len(data["rows"]), left_out + data["left_out"]
        assert (seen + left_out, left_out > 0) == (50, True)


def test_a_socket_gives_the_same(service: Service):
    service.add(ROWS, name="rows")
    service.append(1.0, price=7.0)
    settle(service, "rows", 1)
    address = service.url.replace("http", "ws")
    with connect(f"{address}/v1/queries/rows/socket?from=beginning") as socket:
        assert json.loads(socket.recv())["event"] == "columns"
        told = json.loads(socket.recv())
        assert (told["event"], told["data"]["rows"]) == ("rows", [[7.0]])
        service.http.delete("/v1/queries/rows")
        assert json.loads(socket.recv())["event"] == "end"


def test_after_a_restart_readers_go_on_where_they_were(service: Service):
    service.add(ROWS, name="rows")
    service.append(1.0, 2.0, price=1.0)
    settle(service, "rows", 2)
    page = service.http.get("/v1/queries/rows/results").json()
    service.restart()
    assert [(one["name"], one["status"]) for one in service.http.get("/v1/queries").json()] == [("rows", "live")]
    service.append(3.0, price=2.0)
    settle(service, "rows", 3)
    assert service.http.get("/v1/queries/rows/results", params={"after": page["next"]}).json()["rows"] == [[2.0]]
    assert sorted(price for page in pages(service, "rows", 2) for price in page) == [1.0, 1.0, 2.0]


def test_a_reader_that_does_not_read_keeps_nobody_waiting(service: Service):
    service.add("SELECT price, user_id, gem_pack, time FROM purchases", name="rows")
    with service.http.stream("GET", "/v1/queries/rows/live"):  # never read from
        for number in range(20):
            service.append(*(number + place / 1000 for place in range(500)))
        settle(service, "rows", 10_000)
        assert service.http.get("/v1/health").json()["status"] == "ok"


def test_what_is_no_longer_kept_is_told(serve):
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="rows")
    for second in range(3):
        service.append(second, price=float(second))
        settle(service, "rows", second + 1)
    service.host.result_log.trim()
    page = service.http.get("/v1/queries/rows/results").json()
    assert (page["rows"], page["missed"]) == ([], True)
    with following(service, "rows", **{"from": "beginning"}) as found:
        assert next(found)[0] == "columns"
        kind, at, data = next(found)
        assert (kind, data["to"]) == ("missed", at)
        service.append(9.0, price=9.0)
        assert next(found)[2]["rows"] == [[9.0]]
    assert service.http.get("/v1/queries/rows/results", params={"after": page["next"]}).json()["missed"] is False
    service.restart()
    assert service.http.get("/v1/queries/rows/results").json()["missed"] is True


def test_rows_that_go_while_they_are_read_are_told_of(service: Service, monkeypatch: pytest.MonkeyPatch):
    service.add(ROWS, name="rows")
    for second in range(3):
        service.append(second, price=float(second))
        settle(service, "rows", second + 1)
    kept, query = service.host.result_log, service.session.query("rows")
    read = kept._read_batch

    def slowly(query, batch):
        monkeypatch.setattr(kept, "_read_batch", read)
        monkeypatch.setattr(kept, "_max_bytes", 1)
        kept.trim()
        return read(query, batch)

    monkeypatch.setattr(kept, "_read_batch", slowly)
    piece = kept.read(query, BEGINNING, 1000)
    assert (piece.rows.num_rows, piece.missed) == (0, True)


def test_a_page_that_waits_still_says_what_was_missed(serve):
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="rows")
    service.append(1.0)
    settle(service, "rows", 1)
    service.host.result_log.trim()
    timer = threading.Timer(0.5, service.append, [2.0])
    timer.start()
    page = service.http.get("/v1/queries/rows/results", params={"wait": 20}).json()
    timer.join()
    assert (page["rows"], page["missed"]) == ([[10.0]], True)


def test_bad_positions_are_refused(service: Service):
    service.add(ROWS, name="rows")
    for bad in ("x", "1", "1.x", "-1.0", "٣.٠", "9" * 40 + ".0"):
        assert service.http.get("/v1/queries/rows/results", params={"after": bad}).status_code == 422
    assert service.http.get("/v1/queries/rows/results", params={"limit": 0}).status_code == 422
    assert service.http.get("/v1/queries/none/live").status_code == 404
    assert service.http.get("/v1/queries/rows/results", params={"after": "99999.0"}).json()["rows"] == []


def test_readers_are_counted(service: Service):
    service.add(ROWS, name="rows")
    with following(service, "rows") as found:
        next(found)
        assert "headrace_readers 1.0" in service.http.get("/metrics").text
    service.append(1.0)  # the next thing that is sent finds the reader gone
    until = time.monotonic() + 20
    while "headrace_readers 0.0" not in service.http.get("/metrics").text:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_last_rows_are_found_from_behind(service: Service):
    service.add(ROWS, name="rows")
    service.append_and_wait(1, 2, 3)
    service.append(4, 5, price=4.0)
    settle(service, "rows", 5)

    def last(count: int) -> list[float]:
        page = service.http.get("/v1/queries/rows/results", params={"after": f"last-{count}"}).json()
        assert not page["missed"]
        return [row[0] for row in page["rows"]]

    assert [last(count) for count in (0, 1, 3, 5, 99)] == [
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


def test_the_last_rows_are_looked_for_where_they_are_kept(serve):
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="rows")
    service.append_and_wait(1, 2)
    service.host.result_log.trim()
    page = service.http.get("/v1/queries/rows/results", params={"after": "last-5"}).json()
    assert (page["rows"], page["missed"]) == ([], False)


def test_whoever_follows_can_begin_with_the_last_rows(service: Service):
    service.add(ROWS, name="rows")
    service.append_and_wait(1, 2)
    service.append(3, price=3.0)
    settle(service, "rows", 3)
    with service.http.stream("GET", "/v1/queries/rows/live", params={"from": "last-2"}) as answer:
        rows = next(data["rows"] for kind, _, data in parse_events(answer) if kind == "rows")
    assert rows in ([[10.0], [3.0]], [[10.0]])  # each batch may be an event of its own


def test_a_query_that_came_late_begins_with_itself(serve, monkeypatch):
    """What was before it is not looked into, and if it is gone nothing is missed."""
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    service.add(ROWS, name="early")
    service.append_and_wait(1, 2, 3)
    service.host.result_log.trim()
    service.add(ROWS, name="late")
    service.append(4, price=4.0)
    settle(service, "late", 1)
    loaded = []
    load = service.host.result_log._read_batch
    monkeypatch.setattr(service.host.result_log, "_read_batch", lambda query, batch: loaded.append(batch) or load(query, batch))
    page = service.http.get("/v1/queries/late/results").json()
    assert (page["rows"], page["missed"]) == ([[4.0]], False)
    assert min(loaded) >= service.session.query("late").first_batch > 2
    assert service.http.get("/v1/queries/early/results").json()["missed"]


def test_the_folder_of_results_is_looked_into_once(service: Service, monkeypatch):
    service.add(ROWS, name="rows")
    service.append_and_wait(1)
    settle(service, "rows", 1)
    assert pages(service, "rows", 10) == [[10.0]]
    looks = []
    monkeypatch.setattr("headrace.service.result_log.result_files.list_result_files", lambda *given: looks.append(given) or [])
    service.append_and_wait(2, 3)
    settle(service, "rows", 3)
    assert pages(service, "rows", 10) == [[10.0, 10.0, 10.0]]
    assert looks == []


def test_readers_are_told_in_rounds_and_nobody_else_waits_for_them(service: Service, monkeypatch):
    """However fast batches come: here readers may take next to nothing, so that a second goes by from round to round."""
    monkeypatch.setattr("headrace.service.notifier._READER_CPU_SHARE", 1e-9)
    service.add(ROWS, name="rows")
    with service.http.stream("GET", "/v1/queries/rows/live", params={"from": "beginning"}) as answer:
        begun, seen = time.monotonic(), []
        for number in range(20):
            service.append(number, price=float(number))
            assert service.add(name=f"other{number}").json()["status"] == "live"
        for kind, _, data in parse_events(answer):
            if kind == "rows":
                seen.append([row[0] for row in data["rows"]])
            if sum(map(len, seen)) == 20:
                break
    assert [price for rows in seen for price in rows] == [float(price) for price in range(20)]
    assert len(seen) <= 2 + (time.monotonic() - begun) / 0.9


def rows_until(answer, count: int) -> list[float]:
    found: list[float] = []
    for kind, _, data in parse_events(answer):
        if kind == "rows":
            found.extend(row[0] for row in data["rows"])
        if len(found) >= count:
            return found
    return found


def test_readers_that_stand_are_written_to_without_being_woken(service: Service, monkeypatch):
    woken: list[str] = []
    before = subscriptions._SseChannel.send

    async def counted(self, given):
        woken.extend(event.kind for event in given)
        await before(self, given)

    monkeypatch.setattr(subscriptions._SseChannel, "send", counted)
    service.add(ROWS, name="rows")
    with ExitStack() as stack:
        answers = [stack.enter_context(service.http.stream("GET", "/v1/queries/rows/live")) for _ in range(5)]
        until = time.monotonic() + 20
        while len(service.host.subscriptions._idle) < 5:
            assert time.monotonic() < until
            time.sleep(0.01)
        service.append_and_wait(*range(10))
        assert [rows_until(answer, 10) for answer in answers] == [[10.0] * 10] * 5
    assert woken.count("columns") == 5
    assert "rows" not in woken


def test_readers_have_every_row_once_also_when_some_are_slow(service: Service, monkeypatch):
    """Those that are slow are woken and go on by themselves; the rows are more than sockets hold."""
    taken: list[bool] = []
    before = subscriptions._SseChannel.try_send

    def counted(self, made):
        taken.append(before(self, made))
        return taken[-1]

    monkeypatch.setattr(subscriptions._SseChannel, "try_send", counted)
    wide = ", ".join(f"price AS price{number}" for number in range(20))
    service.add(f"SELECT price, {wide} FROM purchases", name="rows")
    batches, size, seen = 40, 500, {}
    prices = [number + 0.123456789012 for number in range(batches)]

    def read(number: int) -> None:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", service.port))
            connection.sendall(b"GET /v1/queries/rows/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = HTTPResponse(connection)
            answer.begin()
            begun.wait()
            if number % 2:
                appended.wait()
            lines = (line.decode().rstrip("\n") for line in answer)
            seen[number] = rows_until(SimpleNamespace(iter_lines=lambda: lines), batches * size)

    begun, appended = threading.Barrier(5), threading.Event()
    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    for price in prices:
        service.append(*([price] * size), price=price)
    settle(service, "rows", batches * size)
    appended.set()
    for thread in threads:
        thread.join(60)
    assert [sorted(seen[number]) for number in range(4)] == [[price for price in prices for _ in range(size)]] * 4
    assert {True, False} == set(taken)


def test_an_old_client_gets_events_that_are_not_in_chunks(service: Service):
    service.add(ROWS, name="rows")
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(b"GET /v1/queries/rows/live HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        service.append(1, price=7.0)
        found = b""
        while b"7.0" not in found:
            found += connection.recv(1 << 16)
    body = found.partition(b"\r\n\r\n")[2].decode()
    assert {line.partition(": ")[0] for line in body.splitlines()} <= {"event", "id", "data", ""}


def test_readers_that_leave_at_once_are_no_longer_counted(service: Service):
    service.add(ROWS, name="rows")
    request = b"GET /v1/queries/rows/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(request)
    service.http.get("/v1/health")
    until = time.monotonic() + 20
    while service.host.reader_count:
        assert time.monotonic() < until, service.host.reader_count
        time.sleep(0.05)

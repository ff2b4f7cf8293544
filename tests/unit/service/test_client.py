"""The HTTP client: the methods of a session against a remote service."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

import headrace as hr
from headrace.errors import InternalError, NameTakenError, NotFoundError, SessionError, SqlError
from headrace.service.admission import ServiceLimits
from support.in_process_service import COLUMNS, COUNT_QUERY, Service, timestamp, wait_until

ROW = {"user_id": 1, "gem_pack": 1, "price": 10.0}


@pytest.fixture
def remote(service: Service):
    with hr.connect(service.url) as session:
        yield session


def test_a_query_is_added_read_and_removed(remote):
    query = remote.add(COUNT_QUERY, name="counts")
    assert (query.name, query.status, query.wait_live(5).status) == ("counts", "live", "live")
    remote.append("purchases", [{**ROW, "time": timestamp(second)} for second in (0.5, 0.6, 1.5)])
    tables = query.tail("beginning")
    first = next(tables)
    assert first.to_pylist()[0]["n"] == 2
    assert first.schema == query.schema == query.results().schema
    assert query.results().num_rows == 1
    assert query.to_pandas()["total"].tolist() == [20.0]
    assert "counts" in query._repr_html_()
    assert [item.name for item in remote.queries()] == ["counts"]
    query.remove()
    assert list(tables) == []
    assert remote.query("counts").status == "removed"


def test_a_built_query_can_be_added(remote):
    query = remote.add(hr.select("price").from_("purchases"))
    assert query.sql == hr.select("price").from_("purchases").sql


def test_the_client_raises_the_errors_of_a_session(remote):
    with pytest.raises(SqlError, match="nope") as caught:
        remote.add("SELECT nope FROM purchases")
    assert "^" in caught.value.place
    remote.add(COUNT_QUERY, name="counts")
    with pytest.raises(NameTakenError):
        remote.add("SELECT price FROM purchases", name="counts")
    with pytest.raises(NotFoundError):
        remote.remove("nobody")
    with pytest.raises(SessionError, match="no service answers"):
        hr.connect("http://127.0.0.1:1")


def test_a_bug_in_the_binder_is_a_500_with_a_reference_and_no_traceback(
    service: Service, remote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("headrace.sql.binder.check_plan_size", lambda plan: {}["bug"])
    with pytest.raises(InternalError, match="the query could not be bound") as caught:
        remote.add("SELECT price * 7 FROM purchases")
    reference = caught.value.detail.removeprefix("reference ")
    assert [record for record in caplog.records if reference in record.getMessage() and record.exc_info]
    response = service.http.post("/v1/check", json={"sql": "SELECT price * 8 FROM purchases"})
    assert response.status_code == 500
    assert reference in response.json()["detail"]
    assert not {"Traceback", "KeyError", "bug'"} & set(response.text.split())


def test_a_bug_in_a_path_is_a_500_with_a_reference_and_no_traceback(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(hr.Session, "explain", lambda session: {}["secret"])
    response = service.http.get("/v1/plan")
    assert (response.status_code, response.json()["error"]) == (500, "internal error: GET /v1/plan")
    reference = response.json()["detail"].removeprefix("reference ")
    assert [record for record in caplog.records if reference in record.getMessage() and record.exc_info]
    assert "secret" not in response.text


def test_streams_are_declared_and_listed(remote):
    remote.create_stream("other", hr.MemorySource(COLUMNS), time="time", watermark="1 second")
    stream = remote.streams()["other"]
    assert (stream["delay_seconds"], [column["name"] for column in stream["columns"]]) == (
        1.0,
        ["user_id", "gem_pack", "price", "time"],
    )
    assert "one shared pipeline" in remote.explain()
    assert remote.check("SELECT price FROM other") == [{"name": "price", "type": "DOUBLE"}]


def test_a_query_is_replaced(remote):
    first = remote.add(COUNT_QUERY, name="counts")
    second = remote.replace("counts", "SELECT price FROM purchases")
    assert (second.name, second.id != first.id) == ("counts", True)


def test_a_query_handle_keeps_its_query_after_a_replace(service: Service, remote):
    first = remote.add("SELECT price FROM purchases", name="rows")
    service.append_and_wait(1.0)
    tables = first.tail("beginning")
    assert next(tables)["price"].to_pylist() == [10.0]
    second = remote.replace("rows", "SELECT user_id FROM purchases")
    service.append_and_wait(2.0)
    assert list(tables) == []  # ends at once, without rows of the new query
    assert (first.refresh().status, first.results().schema.names) == ("removed", ["price"])
    assert (second.refresh().status, second.results()["user_id"].to_pylist()) == ("live", [1])
    with pytest.raises(NotFoundError):
        remote.query("rows", 99)


def test_a_busy_service_is_retried_within_the_wait_time(serve, monkeypatch):
    service = serve(limits=ServiceLimits(queries=1))
    service.declare()
    with hr.connect(service.url) as session:
        session.add(COUNT_QUERY, name="one")
        with pytest.raises(SessionError, match="1 queries exist"):  # Retry-After: one minute
            session.add(COUNT_QUERY, name="two", wait=5)
        monkeypatch.setattr("headrace.service.host.ServiceHost._longest_recent_batch", lambda _: 0.1)
        monkeypatch.setattr(service.host, "limits", ServiceLimits(waiting=0))  # Retry-After: one second
        pauses: list[float] = []
        clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
        monkeypatch.setattr("headrace.client.time", clock)
        with pytest.raises(SessionError, match="wait to become live"):
            session.add(COUNT_QUERY, name="two", wait=1.5)
        assert pauses == [1.0]


def test_evicted_results_cause_a_warning(serve):
    service = serve(limits=ServiceLimits(results_bytes=1))
    service.declare()
    with hr.connect(service.url) as session:
        query = session.add("SELECT price FROM purchases", name="rows")
        service.append_and_wait(1.0)
        service.add("SELECT price FROM purchases WHERE price < 0", name="none")  # its micro-batch deletes earlier results
        with pytest.warns(UserWarning, match="no longer kept"):
            assert query.results().num_rows == 0


def test_follow_from_now_includes_rows_appended_after_the_call(service: Service, remote):
    query = remote.add("SELECT price FROM purchases", name="rows")
    pages = query.follow("now", 0.1)
    assert next(pages).next != "now"
    service.append(1.0, price=1.0)
    service.restart()  # the connection is lost before the first row
    assert next(page.rows["price"].to_pylist() for page in pages if page.rows.num_rows) == [1.0]


def test_a_tail_survives_a_restart(service: Service, remote, monkeypatch):
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: time.sleep(min(seconds, 0.01)))
    monkeypatch.setattr("headrace.client.time", clock)
    query = remote.add("SELECT price FROM purchases", name="rows")
    seen: list[float] = []

    def read() -> None:
        for table in query.tail("beginning"):
            seen.extend(table["price"].to_pylist())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    service.append(1.0, 2.0, price=1.0)
    service.restart()
    service.append(3.0, price=2.0)
    wait_until(lambda: len(seen) == 3)
    service.http.delete("/v1/queries/rows")
    reader.join(30)
    assert not reader.is_alive()
    assert sorted(seen) == [1.0, 1.0, 2.0]


def test_the_client_reads_progress_and_changes_partitions(remote, service: Service):
    assert (remote.last_progress, remote.recent_progress) == (None, [])
    assert remote.rescale(3)["next"] == 3
    remote.add(COUNT_QUERY, name="counts")
    service.append_and_wait(0.5)
    assert remote.last_progress["partitions"] == 3
    assert [document["batch"] for document in remote.recent_progress] == list(range(service.session.last_batch + 1))
    with pytest.raises(SqlError, match="invalid request"):
        remote.rescale("many")

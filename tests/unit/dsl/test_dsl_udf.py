"""User-defined functions in a session: calls from SQL and flows, sharing, recovery, refusals."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import NameTakenError, NotFoundError, SchemaError, SqlError
from headrace.storage.fault_points import install_fault_hook

COLUMNS = "user_id INT, price DOUBLE, name STRING, time TIMESTAMP"
RATE = 1.19
LOCK = threading.Lock()


@hr.function("DOUBLE", arguments="DOUBLE")
def vat(price):
    return pc.multiply(price, RATE)


def open_session(checkpoint: Path | None = None, **options):
    session = hr.Session(checkpoint, **{"backend": "local", **options})
    session.source = hr.MemorySource(COLUMNS)
    session.create_stream("purchases", session.source, time="time")
    return session


@pytest.fixture
def session():
    with open_session() as opened_session:
        yield opened_session


def make_time(second: int) -> datetime:
    return datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC)


def make_rows(*prices: float | None, start: int = 0) -> list[dict]:
    return [{"user_id": n, "price": price, "name": f"n{n}", "time": make_time(start + n)} for n, price in enumerate(prices)]


def make_logging_function(path: Path):
    """Return a function that logs its calls to a file, since workers call a pickled copy in another process."""

    def twice(price):
        with path.open("a") as file:
            file.write(f"{len(price)}\n")
        return pc.multiply(price, 2.0)

    return twice


def count_calls(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


# -------------------------------------------------------------------------------------------------------------------- calling


def test_a_function_is_called_in_sql_and_in_a_flow(session) -> None:
    session.register_function(vat)
    text = session.add("SELECT user_id, VAT(price) AS gross FROM purchases WHERE vat(price) > 10", name="text")
    flow = session.stream("purchases").map(gross=vat("price")).filter("gross > 10").select("user_id", "gross").add("flow")
    session.source.append(make_rows(5.0, 10.0, None, 20.0))
    session.advance()
    assert text.results().to_pylist() == [{"user_id": 1, "gross": 10.0 * RATE}, {"user_id": 3, "gross": 20.0 * RATE}]
    assert flow.results().equals(text.results())


def test_numpy_and_rowwise_functions(session) -> None:
    session.register_function("root", lambda x: np.sqrt(x.to_numpy(zero_copy_only=False)), "DOUBLE", arguments="DOUBLE")
    session.register_function("shout", hr.rowwise(lambda name, n: name.upper() * n), "STRING", arguments=["STRING", "INT"])
    query = session.add("SELECT root(price) AS r, shout(name, user_id) AS s FROM purchases")
    session.source.append([*make_rows(4.0, 9.0), {"user_id": None, "price": 1.0, "name": "x", "time": make_time(9)}])
    session.advance()
    assert query.results().to_pylist() == [{"r": 2.0, "s": ""}, {"r": 3.0, "s": "N1"}, {"r": 1.0, "s": None}]


def test_a_string_literal_takes_the_type_of_the_argument(session) -> None:
    session.register_function("times", hr.rowwise(lambda x, n: x * n), "DOUBLE", arguments=["DOUBLE", "INT"])
    query = session.add("SELECT times(price, '3') AS t FROM purchases")
    session.source.append(make_rows(0.5, 2.0))
    session.advance()
    assert query.results()["t"].to_pylist() == [1.5, 6.0]


def test_a_function_in_aggregates_keys_and_having(session) -> None:
    session.register_function(vat)
    session.register_function("parity", lambda n: pc.bit_wise_and(n, 1), "INT", arguments="INT")
    query = session.add(
        "SELECT parity(user_id) AS p, SUM(vat(price)) AS a, vat(SUM(price)) AS b FROM TUMBLE(purchases, '1 minute') "
        "GROUP BY parity(user_id) HAVING vat(SUM(price)) > 1"
    )
    session.source.append(make_rows(1.0, 2.0, 3.0, 4.0))
    session.drain()
    results = sorted(query.results().to_pylist(), key=lambda row: row["p"])
    assert [row["p"] for row in results] == [0, 1]
    assert [row["a"] for row in results] == pytest.approx([4.0 * RATE, 6.0 * RATE])
    assert [row["b"] for row in results] == pytest.approx([4.0 * RATE, 6.0 * RATE])


def test_a_function_in_a_join_condition(session) -> None:
    session.register_function(vat)
    hop = hr.hop("8 s", "8 s")
    left, right = (session.stream("purchases").alias(name).window(hop) for name in "ab")
    query = left.join(right, vat("a.price") == hr.col("b.price")).select("a.user_id", other="b.user_id").add()
    session.source.append([*make_rows(1.0, 2.0), *make_rows(RATE, 7.0, start=3)])
    session.drain()
    assert query.results().to_pylist() == [{"user_id": 0, "other": 0}]


def test_results_equal_the_reference() -> None:
    results = []
    for backend in ("local", "reference"):
        with open_session(backend=backend) as session:
            session.register_function(vat)
            session.register_function("size", hr.rowwise(len), "INT", arguments="STRING")
            query = session.add(
                "SELECT window_start, size(name) AS n, MAX(vat(price)) AS x FROM TUMBLE(purchases, '2 s') GROUP BY 2"
            )
            session.source.append(make_rows(*map(float, range(14)), None))
            session.drain()
            results.append(sorted(query.results().to_pylist(), key=str))
    assert results[0] == results[1]
    assert len(results[0]) > 6


# ------------------------------------------------------------------------------------------------------------------- sharing


def test_equal_calls_are_evaluated_once_for_all_queries(session, tmp_path: Path) -> None:
    session.register_function("twice", make_logging_function(tmp_path / "calls"), "DOUBLE", arguments="DOUBLE")
    for limit in range(20):
        session.add(f"SELECT window_end, SUM(twice(price)) AS s FROM TUMBLE(purchases, '9 s') WHERE twice(price) > {limit}")
    session.add(session.stream("purchases").filter("twice(price) > 3").window(hr.tumble("9 s")).agg(s=hr.sum("twice(price)")))
    session.source.append(make_rows(1.0, 2.0, 3.0))
    session.advance()
    assert count_calls(tmp_path / "calls") == 1
    (line,) = [line for line in session.explain().splitlines() if "twice@" in line and "segments" in line]
    assert line.startswith("    selection: 20 distinct predicates")
    assert "stream purchases: read once for 21 queries" in session.explain()


def test_calls_with_other_arguments_or_functions_are_not_shared(session) -> None:
    session.register_function(vat)
    session.register_function("vat7", lambda price: pc.multiply(price, 1.07), "DOUBLE", arguments="DOUBLE")
    for call in ("vat(price)", "vat(price)", "vat(price + 1)", "vat7(price)"):
        session.add(f"SELECT COUNT(*) AS n FROM TUMBLE(purchases, '9 s') WHERE {call} > 10")
    session.advance()
    assert sum("vat" in line and "segments" in line for line in session.explain().splitlines()) == 3


# ------------------------------------------------------------------------------------------------------------------- recovery


def test_functions_are_restored_from_the_checkpoint(tmp_path: Path) -> None:
    with open_session(tmp_path / "state") as session:
        session.register_function(vat)
        session.add("SELECT SUM(vat(price)) AS s FROM TUMBLE(purchases, '5 s')", name="gross")
        session.source.append(make_rows(1.0, 2.0))
        session.advance()
    with open_session(tmp_path / "state") as session:
        session.source.append(make_rows(9.0, start=9))
        session.advance()
        assert session.query("gross").results()["s"].to_pylist() == pytest.approx([3.0 * RATE])
        session.register_function(vat)  # an equal function is accepted
        session.add("SELECT vat(price) AS g FROM purchases")


@pytest.mark.parametrize("point", ["logged", "stage one", "commit", "committed"])
def test_an_interrupted_batch_is_replayed_with_its_functions(tmp_path: Path, point: str) -> None:
    class CrashError(Exception):
        pass

    def crash(step: str) -> None:
        if step == point:
            raise CrashError

    install_fault_hook(tmp_path / "state", crash)
    session = open_session(tmp_path / "state")
    session.register_function(vat)
    session.add("SELECT vat(price) AS g FROM purchases", name="gross")
    session.source.append(make_rows(1.0, 2.0))
    with pytest.raises(CrashError):
        session.advance()
    session.close()
    install_fault_hook(tmp_path / "state", None)
    with open_session(tmp_path / "state") as session:
        assert session.query("gross").schema == pa.schema([("g", pa.float64())])
        session.advance()
        assert session.query("gross").results()["g"].to_pylist() == [RATE, 2.0 * RATE]


def test_a_changed_function_is_refused_while_a_query_calls_it(tmp_path: Path) -> None:
    with open_session(tmp_path / "state") as session:
        session.register_function(vat)
        session.register_function(vat)
        session.add("SELECT vat(price) AS g FROM purchases", name="gross")
        for _ in range(2):  # before and after the query becomes live
            with pytest.raises(
                NameTakenError, match=r"function 'vat' is already registered with different code or types\n.*gross\nhint"
            ):
                session.register_function("VAT", lambda price: pc.multiply(price, 1.2), "DOUBLE", arguments="DOUBLE")
            session.advance()
    with open_session(tmp_path / "state") as session:
        with pytest.raises(NameTakenError, match="with different code or types"):
            session.register_function("vat", vat.code, "DOUBLE", arguments="FLOAT")
        session.remove("gross")
        session.advance()
        session.register_function("vat", lambda price: pc.multiply(price, 2), "DOUBLE", arguments="DOUBLE")
        query = session.add("SELECT vat(price) AS g FROM purchases", name="gross")
        session.source.append(make_rows(5.0))
        session.advance()
        assert query.results()["g"].to_pylist() == [10.0]


def test_open_windows_are_emitted_after_a_function_changed(session) -> None:
    """
    old query    |---- removed
    function     1......2.........
    new query           |---------
    late row              ^ belongs to the epoch of the old query
    """
    session.register_function("f", lambda x: pc.multiply(x, 1.0), "DOUBLE", arguments="DOUBLE")
    count = "SELECT COUNT(*) AS n FROM TUMBLE(purchases, '30 s') WHERE {} > 1"
    old, other = session.add(count.format("f(price)"), name="old"), session.add(count.format("price"), name="other")
    session.source.append(make_rows(1.0, 2.0, 3.0))
    session.advance()
    session.remove("old")
    session.advance()
    session.register_function("f", lambda x: pc.multiply(x, 2.0), "DOUBLE", arguments="DOUBLE")
    session.add(count.format("f(price)"), name="new")
    session.source.append([*make_rows(5.0, start=1), *make_rows(6.0, start=40)])
    session.drain()
    assert other.results()["n"].to_pylist() == [3, 1]
    assert old.results().num_rows == 0


def test_a_function_is_dropped_when_unused(session) -> None:
    session.register_function(vat)
    query = session.add("SELECT vat(price) AS g FROM purchases", name="gross")
    with pytest.raises(NameTakenError, match=r"function 'vat' is in use\ndetail: queries that call it: gross"):
        session.drop_function("vat")
    query.remove()
    session.drop_function("VAT")
    with pytest.raises(SqlError, match="unknown function 'vat'"):
        session.add("SELECT vat(price) AS g FROM purchases")
    with pytest.raises(NotFoundError, match=r"function 'vat' is not registered\ndetail: functions: none"):
        session.drop_function("vat")


def test_five_callers_of_a_function_are_named_and_the_others_counted(session) -> None:
    session.register_function(vat)
    for number in range(7):
        session.add("SELECT vat(price) AS g FROM purchases", name=f"q{number}")
    with pytest.raises(NameTakenError, match="queries that call it: q0, q1, q2, q3, q4 and 2 more\n"):
        session.drop_function("vat")


# ------------------------------------------------------------------------------------------------------------------- failures


def test_a_raised_error_fails_only_the_calling_queries(session) -> None:
    session.register_function("inverse", hr.rowwise(lambda x: 1 / x), "DOUBLE", arguments="DOUBLE")
    bad = session.add("SELECT inverse(price) AS i FROM purchases", name="bad")
    careful = session.add("SELECT CASE WHEN price <> 0 THEN inverse(price) END AS i FROM purchases", name="careful")
    session.source.append(make_rows(2.0, 0.0, 4.0))
    session.advance()
    assert bad.status == "failed"
    assert bad.error == "function 'inverse' failed: ZeroDivisionError: float division by zero"
    assert careful.results()["i"].to_pylist() == [0.5, None, 0.25]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (lambda x: x[:1], "failed: it returned 1 values for"),
        (lambda x: 1.0, "failed: it must return a column, not float"),
        (lambda x: pa.scalar(1.0), "failed: it must return a column, not DoubleScalar"),
        (lambda x: ["a"] * len(x), r"ArrowInvalid: Could not convert 'a'"),
    ],
)
def test_invalid_return_values_fail_the_query(session, code, message: str) -> None:
    session.register_function("odd", code, "DOUBLE", arguments="DOUBLE")
    query = session.add("SELECT odd(price) AS o FROM purchases")
    session.source.append([*make_rows(1.0, 2.0)] * 2)
    session.advance()
    assert query.status == "failed"
    assert message in query.error


@pytest.mark.parametrize(
    ("name", "code", "returns", "arguments", "message"),
    [
        ("sum", vat.code, "DOUBLE", "DOUBLE", "function 'sum' is built in"),
        ("UPPER", vat.code, "DOUBLE", "DOUBLE", "function 'upper' is built in"),
        ("hop", vat.code, "DOUBLE", "DOUBLE", "function 'hop' is built in"),
        ("a b", vat.code, "DOUBLE", "DOUBLE", "'a b' cannot be the name of a function"),
        ("select", vat.code, "DOUBLE", "DOUBLE", "'select' cannot be the name of a function"),
        ("f", 5, "DOUBLE", "DOUBLE", "function 'f' is not callable\ndetail: it is 5"),
        ("f", vat.code, "MONEY", "DOUBLE", "unknown type 'MONEY'"),
        ("f", vat.code, None, "DOUBLE", "function 'f' needs the type it returns"),
        ("f", lambda: 1, "INT", None, "function 'f' needs at least one argument"),
        ("f", max, "DOUBLE", None, "function 'f' has no known parameters\nhint: give arguments"),
        ("f", lambda x: LOCK, "DOUBLE", None, "function 'f' cannot be stored\\ndetail: cannot pickle"),
    ],
)
def test_invalid_functions_are_refused(session, name, code, returns, arguments, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        session.register_function(name, code, returns, arguments=arguments)


def test_calls_are_checked_when_a_query_is_added(session) -> None:
    session.register_function(vat)
    for text, message in (
        ("vat(price, 1)", "function 'vat' takes 1 arguments, not 2"),
        ("vat(name)", "argument 1 of function 'vat' must have DOUBLE, not STRING"),
        ("vat('many')", "function 'vat' needs a column among its arguments"),
        ("vat(1.5)", "function 'vat' needs a column among its arguments"),
    ):
        with pytest.raises(SqlError, match=message) as refusal:
            session.add(f"SELECT {text} AS x FROM purchases")
        assert refusal.value.place.startswith("line 1, column 8")
    with pytest.raises(SqlError, match="function 'vat' takes 1 arguments, not 2"):
        vat("price", "name")
    assert session.check("SELECT vat(user_id) AS x FROM purchases") == pa.schema([("x", pa.float64())])

"""Unnesting: a row for each element of a list, as a derived stream shared by all queries with an equal unnest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import SqlError
from headrace.plan.derived import NestedQuery
from headrace.sql import bind_query
from headrace.storage.fault_points import install_fault_hook
from support.examples import scale_examples

COLUMNS = "a INT, text STRING, time TIMESTAMP"


@hr.function("ARRAY<STRING>", arguments="STRING")
def words(text):
    return pc.utf8_split_whitespace(text)


@hr.function("ARRAY<INT>", arguments="STRING")
def sizes(text):
    return [None if value is None else list(range(len(value))) for value in text.to_pylist()]


def open_session(checkpoint: Path | None = None, **options):
    session = hr.Session(checkpoint, **{"backend": "local", **options})
    session.source = hr.MemorySource(COLUMNS)
    session.create_stream("tweets", session.source, time="time", watermark="2 seconds")
    session.register_function(words)
    session.register_function(sizes)
    return session


@pytest.fixture
def session():
    with open_session() as opened_session:
        yield opened_session


def at(second: float) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def make_rows(*texts: str | None, start: int = 0) -> list[dict]:
    return [{"a": n, "text": text, "time": at(start + n)} for n, text in enumerate(texts)]


# --------------------------------------------------------------------------------------------------------------------- meaning


def test_flat_map_gives_a_row_for_each_element(session) -> None:
    flow = session.stream("tweets").filter("a < 9").flat_map(word=words("text")).filter("word <> 'the'").select("a", "word")
    query = flow.add("flow")
    sql_query = session.add("SELECT a, word FROM tweets LATERAL VIEW explode(words(text)) AS word WHERE a < 9 AND word <> 'the'")
    session.source.append(make_rows("the cat", None, "cat sat sat"))
    session.advance()
    assert query.results().to_pylist() == [{"a": a, "word": w} for a, w in ((0, "cat"), (2, "cat"), (2, "sat"), (2, "sat"))]
    assert sql_query.results().equals(query.results())


def test_empty_and_null_lists_give_no_rows(session) -> None:
    query = session.stream("tweets").flat_map(n=sizes("text")).select("a", "n").add()
    session.source.append(make_rows("", None, "ab"))
    session.advance()
    assert query.results().to_pylist() == [{"a": 2, "n": 0}, {"a": 2, "n": 1}]


def test_flat_map_before_a_windowed_aggregation(session) -> None:
    """
    tweets   the cat ──── cat ────────── sat
    TUMBLE  |─────────────────|─────────────────|
    """
    flow = session.stream("tweets").window(hr.tumble("5 s")).flat_map(word=words("text"))
    query = flow.group_by("word").agg(n=hr.count()).select("word", "n").add()
    session.source.append([*make_rows("the cat", "cat"), *make_rows("sat", start=6)])
    session.drain()
    assert sorted(map(tuple, map(dict.values, query.results().to_pylist()))) == [("cat", 2), ("sat", 1), ("the", 1)]


def test_nested_flat_maps_and_joins_of_unnested_rows(session) -> None:
    base = session.stream("tweets").flat_map(word=words("text"))
    nested = base.flat_map(at=sizes("word")).select("word", "at").add()
    tumble = hr.tumble("5 s")
    left, right = base.alias("l").window(tumble), base.alias("r").window(tumble)
    pairs = left.join(right, "l.word = r.word AND l.a < r.a").select("l.word").add()
    close = base.alias("l").window(hr.sliding("3 s")).join(base.alias("r").window(hr.sliding("0 s")), "word")
    close = close.filter("l.a < r.a").select("word").add()
    session.source.append(make_rows("ab c", "c ab"))
    session.drain()
    assert [tuple(row.values()) for row in nested.results().to_pylist()] == [
        (word, n) for word in ("ab", "c", "c", "ab") for n in range(len(word))
    ]
    assert sorted(pairs.results()["word"].to_pylist()) == sorted(close.results()["word"].to_pylist()) == ["ab", "c"]


def test_late_unnested_rows_are_counted_for_the_base_stream() -> None:
    counts = []
    for backend in ("local", "reference"):
        with open_session(backend=backend) as session:
            query = session.stream("tweets").flat_map(word=words("text")).window(hr.tumble("2 s")).agg(n=hr.count()).add()
            session.source.append(make_rows("a", start=20))
            session.advance()
            session.source.append(make_rows("late too late", start=3))
            session.advance()
            counts.append(query.late)
    assert counts == [{"tweets": 3}] * 2


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_rows_too_far_in_the_future_are_not_unnested(backend: str) -> None:
    with hr.Session(backend=backend) as session:
        source = hr.MemorySource(COLUMNS)
        session.create_stream("tweets", source, time="time", max_ahead="1 hour")
        session.register_function(words)
        query = session.stream("tweets").flat_map(word=words("text")).select("word").add()
        source.append([*make_rows("now"), {"a": 1, "text": "later", "time": at(10**10)}])
        session.advance()
        assert query.results()["word"].to_pylist() == ["now"]


# --------------------------------------------------------------------------------------------------------------------- sharing


def test_equal_unnests_share_a_derived_stream(session, tmp_path: Path) -> None:
    def noted(text):
        with (tmp_path / "calls").open("a") as file:
            file.write("x")
        return pc.utf8_split_whitespace(text)

    session.register_function("noted", noted, "ARRAY<STRING>", arguments="STRING")
    flow = session.stream("tweets").flat_map(word=hr.call("noted", "text")).window(hr.tumble("5 s"))
    queries = [flow.filter(f"a > {n}").group_by("word").agg(n=hr.count()).add(f"q{n}") for n in range(10)]
    session.add(
        "SELECT COUNT(*) AS n FROM HOP(tweets, '4 s', '2 s') LATERAL VIEW explode(noted(text)) AS w WHERE a > 3", name="other"
    )
    session.source.append(make_rows("a b", "c"))
    session.advance()
    assert len((tmp_path / "calls").read_text()) <= 2  # one call per task
    (line,) = [line for line in session.explain().splitlines() if line.startswith("stream tweets*")]
    assert "read once for 11 queries" in line
    for query in queries:
        query.remove()
    session.advance()
    assert "stream tweets*" in session.explain()
    session.remove("other")
    session.advance()
    assert "stream tweets*" not in session.explain()


def test_unused_columns_are_not_read(session) -> None:
    session.stream("tweets").flat_map(word=words("text")).window(hr.tumble("5 s")).agg(n=hr.max("word")).add()
    session.advance()
    (line,) = [line for line in session.explain().splitlines() if line.startswith("stream tweets*")]
    assert line.endswith("columns #3")


# -------------------------------------------------------------------------------------------------------------------- recovery


@pytest.mark.parametrize("point", ["logged", "stage one", "stage two", "commit"])
def test_unnested_streams_recover_from_a_crash(tmp_path: Path, point: str) -> None:
    class CrashError(Exception):
        pass

    armed = []

    def crash(step: str) -> None:
        if armed and step == point:
            raise CrashError

    install_fault_hook(tmp_path / "state", crash)
    session = open_session(tmp_path / "state")
    flow = session.stream("tweets").flat_map(word=words("text")).window(hr.tumble("30 s"))
    flow.group_by("word").agg(n=hr.count()).add("counted")
    session.source.append(make_rows("a b", "b"))
    session.advance()
    armed.append(True)
    session.source.append(make_rows("b c", start=5))
    flow.agg(n=hr.count()).add("all")
    with pytest.raises(CrashError):
        session.advance()
    session.close()
    install_fault_hook(tmp_path / "state", None)
    with open_session(tmp_path / "state") as session:
        if point == "logged":
            assert session._coordinator.unfinished_entry is not None
        session.drain()
        assert sorted((row["word"], row["n"]) for row in session.query("counted").results().to_pylist()) == [
            ("a", 1),
            ("b", 3),
            ("c", 1),
        ]


# ----------------------------------------------------------------------------------------------------- shared equals reference

WORDS = "LATERAL VIEW explode(words(text)) AS w"
QUERIES = (
    f"SELECT a, w FROM tweets {WORDS} WHERE w > 'b'",
    f"SELECT window_end, w, COUNT(*) AS n FROM TUMBLE(tweets, '4 s') {WORDS} GROUP BY w",
    f"SELECT window_end, COUNT(*) AS n, MAX(w) AS x FROM HOP(tweets, '6 s', '2 s') {WORDS} WHERE a > 1",
    f"SELECT window_start, w, COUNT(*) AS n FROM SESSION(tweets, '3 s') {WORDS} GROUP BY w",
    f"SELECT i, COUNT(DISTINCT w) AS n FROM TUMBLE(tweets, '4 s') {WORDS} LATERAL VIEW explode(sizes(w)) AS i GROUP BY i",
    f"SELECT l.w, r.a FROM TUMBLE((SELECT * FROM tweets {WORDS}), '4 s') l JOIN TUMBLE(tweets, '4 s') r ON l.w = r.text",
    f"SELECT l.w, l.a, r.a AS b FROM SLIDING((SELECT * FROM tweets {WORDS}), '3 s') l, SLIDING(tweets, '2 s') r WHERE w = r.text",
    f"SELECT MAX(n) AS m FROM (SELECT w, COUNT(*) AS n FROM TUMBLE(tweets, '4 s') {WORDS} GROUP BY w)",
    f"SELECT COUNT(*) AS n FROM TUMBLE((SELECT time, w FROM tweets {WORDS} UNION ALL SELECT time, text FROM tweets), '4 s')",
)
TEXTS = st.lists(st.sampled_from(["a", "b", "cc", "d"]), max_size=4).map(" ".join) | st.none()
ROW = st.tuples(st.integers(0, 3), TEXTS, st.integers(0, 20) | st.none())
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, len(QUERIES) - 1)),
        st.tuples(st.just("rows"), st.lists(ROW, max_size=6)),
        st.tuples(st.just("remove"), st.integers(0, 3)),
    ),
    min_size=3,
    max_size=9,
)


def run_steps(steps, backend: str):
    with open_session(backend=backend) as session:
        queries = []
        for kind, value in steps:
            if kind == "add":
                queries.append(session.add(QUERIES[value]))
            elif kind == "remove":
                present = session.queries()
                if value < len(present):
                    present[value].remove()
            else:
                appended = [{"a": a, "text": text, "time": None if t is None else at(t)} for a, text, t in value]
                session.source.append(appended) if appended else None
                session.advance()
        session.drain()
        return [(query.sql, query.status, query.late, sorted(map(str, query.results().to_pylist()))) for query in queries]


@settings(max_examples=scale_examples(60), deadline=None)
@given(STEPS)
@example([("add", 5), ("rows", [(0, None, 6)]), ("rows", [(0, "", 0)])])
def test_shared_results_equal_the_reference(steps) -> None:
    assert run_steps(steps, "local") == run_steps(steps, "reference")


# -------------------------------------------------------------------------------------------------------------------- refusals


def test_invalid_unnests_are_refused(session) -> None:
    tweets = session.stream("tweets")
    joined = tweets.window(hr.tumble("5 s")).join(tweets.alias("o").window(hr.tumble("5 s")), "a")
    for build, message in (
        (
            lambda: tweets.map(w=words("text")),
            r"function 'words' returns lists\n.*\n.*\n.*\nhint: write FROM … LATERAL VIEW explode",
        ),
        (lambda: tweets.flat_map(w="upper(text)"), "only lists of registered functions can be exploded"),
        (lambda: tweets.flat_map(text=words("text")), "column 'text' already exists"),
        (tweets.flat_map, "flat_map needs one list"),
        (lambda: joined.flat_map(w=words("o.text")), "flat_map is not supported after join\nhint: call flat_map before join"),
        (
            lambda: tweets.window(hr.tumble("5 s")).agg(text=hr.max("text")).flat_map(w=words("text")),
            "results of windows cannot be exploded",
        ),
        (
            lambda: session.add("SELECT a FROM tweets LATERAL VIEW OUTER explode(words(text)) AS w"),
            "LATERAL VIEW is not supported",
        ),
        (
            lambda: session.add("SELECT a FROM tweets LATERAL VIEW posexplode(words(text)) AS i, w"),
            "LATERAL VIEW is not supported",
        ),
        (
            lambda: session.add(
                "SELECT 1 AS x FROM TUMBLE(tweets, '1 s') t JOIN TUMBLE(tweets, '1 s') o ON t.a = o.a "
                "LATERAL VIEW explode(words(o.text)) AS w"
            ),
            "LATERAL VIEW of joined rows is not supported",
        ),
    ):
        with pytest.raises(SqlError, match=message):
            build()


def test_a_raised_error_fails_only_queries_with_this_unnest(session) -> None:
    def picky(text):
        if "x" in text.to_pylist():
            raise ValueError("an x")
        return pc.utf8_split_whitespace(text)

    session.register_function("picky", picky, "ARRAY<STRING>", arguments="STRING")
    bad = session.stream("tweets").flat_map(w=hr.call("picky", "text")).select("w").add()
    good = session.stream("tweets").flat_map(w=words("text")).select("w").add()
    session.source.append(make_rows("a", "x"))
    session.advance()
    assert (bad.status, bad.error) == ("failed", "function 'picky' failed: ValueError: an x")
    assert good.results()["w"].to_pylist() == ["a", "x"]


def test_equal_unnests_have_equal_plans(session) -> None:
    catalog = session._coordinator.build_catalog()
    first = bind_query("SELECT w FROM tweets LATERAL VIEW explode(words(text)) t AS w", catalog)
    second = bind_query("SELECT w FROM (SELECT a, text AS x FROM tweets) LATERAL VIEW explode(words(x)) AS w", catalog)
    assert isinstance(first, NestedQuery)
    assert first == second
    assert first.streams == ("tweets",)
    assert first.schema.to_arrow() == pa.schema([("w", pa.string())])

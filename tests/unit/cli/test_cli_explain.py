"""`headrace explain`: the sharing of a file's queries, no data read."""

from __future__ import annotations

TWO = """
[queries.a]
sql = "SELECT k, SUM(v) AS s FROM TUMBLE(t, '5 seconds') WHERE v > 3 GROUP BY k"
[queries.b]
sql = "SELECT k, COUNT(*) AS n FROM HOP(t, '9 seconds', '2 seconds') WHERE v > 7 GROUP BY k"
[queries.c]
sql = "SELECT k FROM t"
"""


def test_text(headrace, session_file):
    said = headrace("explain", session_file(queries=TWO))
    assert said.code == 0
    assert said.out.startswith("3 live queries, one shared pipeline\n")
    assert "aggregation by k · used by 2 queries: a, b" in said.out


def test_json(headrace, session_file):
    document = headrace("explain", session_file(queries=TWO), "--json").document
    assert document["queries"] == ["a", "b", "c"]
    operators = document["streams"]["t"]["operators"]
    assert [(op["kind"], op["queries"]) for op in operators] == [("aggregation", ["a", "b"]), ("routing", ["c"])]
    assert operators[0]["windows"] == ["HOP(9 s, 2 s)", "TUMBLE(5 s)"]


def test_no_data_is_needed(headrace, session_file, tmp_path):
    path = session_file()
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    assert headrace("explain", path).code == 0
    assert not (tmp_path / ".headrace").exists()


def test_a_bad_query_is_named_with_its_place(headrace, session_file):
    path = session_file(queries='[queries.bad]\nsql = "SELECT nothing FROM t"\n')
    said = headrace("explain", path)
    assert said.code == 1
    assert f"query 'bad' in '{path}': " in said.err
    assert "nothing" in said.err

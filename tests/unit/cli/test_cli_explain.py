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


SLIDING = """
[queries.again]
sql = "SELECT x.k, y.v FROM SLIDING(t, '5 seconds') x JOIN SLIDING(t, '2 seconds') y ON x.k = y.k"
[queries.more]
sql = "SELECT x.k FROM SLIDING(t, '5 seconds') x JOIN SLIDING(t, '2 seconds') y ON x.k = y.k AND x.v < y.v"
"""


def test_joins_in_sliding_windows(headrace, session_file):
    path = session_file(queries=SLIDING)
    said = headrace("explain", path).out
    assert "stream t: read once for 2 queries; columns k, v" in said
    assert "joins in SLIDING windows · used by 2 queries: again, more" in said
    assert "    probe t#2 (store 0) by t.k = t#2.k and t.v > t#2.v for more · used by 2 queries: again, more" in said
    document = headrace("explain", path, "--json").document["sliding_joins"]
    assert [one["relations"] for one in document["stores"]] == [["t#2"], ["t"]]
    assert [one["results"] for one in document["probes"]["t"]] == [["again", "more"]]


def test_the_graph(headrace, session_file, tmp_path):
    path = session_file(queries=SLIDING)
    said = headrace("explain", path, "--graph")
    assert said.out == headrace("explain", path, "--graph", "text").out
    assert said.out.startswith("input t\n  → s0 group by t.k → t[t.k] ×2\n")
    assert "×8" in headrace("explain", path, "--graph", "--partitions", "8").out
    assert headrace("explain", path, "--graph", "mermaid").out.startswith("flowchart LR\n")
    assert headrace("explain", path, "--graph", "svg", "--out", tmp_path / "graph.svg").out == ""
    assert (tmp_path / "graph.svg").read_text().startswith("<svg ")
    assert headrace("explain", session_file(), "--graph").out == "no joins in SLIDING windows\n"


def test_a_graph_that_cannot_be(headrace, session_file, tmp_path):
    path = session_file(queries=SLIDING)
    for words in (("--graph", "png"), ("svg",), ("--graph", "--json"), ("--graph", "--partitions", "0")):
        assert headrace("explain", path, *words).code == 2
    said = headrace("explain", path, "--graph", "--out", tmp_path / "nowhere" / "graph.svg")
    assert (said.code, "cannot write file" in said.err) == (1, True)

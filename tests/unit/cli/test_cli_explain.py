"""`headrace explain`: how the queries of a session file share operators, without reading data."""

from __future__ import annotations

QUERIES = """
[queries.a]
sql = "SELECT k, SUM(v) AS s FROM TUMBLE(t, '5 seconds') WHERE v > 3 GROUP BY k"
[queries.b]
sql = "SELECT k, COUNT(*) AS n FROM HOP(t, '9 seconds', '2 seconds') WHERE v > 7 GROUP BY k"
[queries.c]
sql = "SELECT k FROM t"
"""


def test_the_plan_as_text(headrace, session_file):
    result = headrace("explain", session_file(queries=QUERIES))
    assert result.code == 0
    assert result.out.startswith("3 live queries, one shared pipeline\n")
    assert "aggregation by k · used by 2 queries: a, b" in result.out


def test_the_plan_as_json(headrace, session_file):
    document = headrace("explain", session_file(queries=QUERIES), "--json").document
    assert document["queries"] == ["a", "b", "c"]
    operators = document["streams"]["t"]["operators"]
    assert [(op["kind"], op["queries"]) for op in operators] == [("aggregation", ["a", "b"]), ("routing", ["c"])]
    assert operators[0]["windows"] == ["HOP(9 s, 2 s)", "TUMBLE(5 s)"]


def test_explain_reads_no_data(headrace, session_file, tmp_path):
    path = session_file()
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    assert headrace("explain", path).code == 0
    assert not (tmp_path / ".headrace").exists()


def test_an_invalid_query_is_named(headrace, session_file):
    path = session_file(queries='[queries.bad]\nsql = "SELECT nothing FROM t"\n')
    result = headrace("explain", path)
    assert result.code == 1
    assert f"query 'bad' in '{path}': " in result.err
    assert "nothing" in result.err


SLIDING = """
[queries.again]
sql = "SELECT x.k, y.v FROM SLIDING(t, '5 seconds') x JOIN SLIDING(t, '2 seconds') y ON x.k = y.k"
[queries.more]
sql = "SELECT x.k FROM SLIDING(t, '5 seconds') x JOIN SLIDING(t, '2 seconds') y ON x.k = y.k AND x.v < y.v"
"""


def test_joins_in_sliding_windows(headrace, session_file):
    path = session_file(queries=SLIDING)
    text = headrace("explain", path).out
    assert "stream t: read once for 2 queries; columns k, v" in text
    assert "joins in SLIDING windows · used by 2 queries: again, more" in text
    assert "    probe t#2 (store 0) by t.k = t#2.k and t.v > t#2.v for more · used by 2 queries: again, more" in text
    document = headrace("explain", path, "--json").document["sliding_joins"]
    assert [item["relations"] for item in document["stores"]] == [["t#2"], ["t"]]
    assert [item["results"] for item in document["probes"]["t"]] == [["again", "more"]]


CHAIN = """
[queries.chain]
sql = '''
SELECT x.k FROM SLIDING(t, '5 s') x JOIN SLIDING(t, '2 s') y ON x.k = y.k JOIN SLIDING(t, '3 s') z ON y.v = z.v'''
"""


def test_the_plan_that_an_option_chooses(headrace, session_file):
    path = session_file(queries=CHAIN)
    assert "plans by estimate" not in headrace("explain", path).out
    text = headrace("explain", path, "--plan", "left_deep", "--target", "latency").out
    assert "a materialized join" in text
    assert "plans by estimate; taken: left_deep (sliding_plan = 'left_deep')" in text
    assert "a materialized join" not in headrace("explain", path, "--plan", "flat").out
    assert headrace("explain", path, "--plan", "best").code == 2
    document = headrace("explain", path, "--plan", "auto", "--json").document["sliding_joins"]["plans"]
    assert document["candidates"].keys() == {"flat", "left_deep", "chain", "merging", "ilp", "greedy", "common"}
    assert document["taken"] == min(document["candidates"], key=lambda name: document["candidates"][name]["rows_sent"])


def test_the_plan_that_a_session_file_chooses(headrace, session_file):
    path = session_file(queries=CHAIN)
    path.write_text(path.read_text() + '\n[sliding_joins]\nplan = "left_deep"\ntarget = "latency"\nsharing = false\n')
    text = headrace("explain", path).out
    assert "taken: left_deep" in text
    assert "store 0 of t" in text
    assert "t@0" in text
    assert "taken: flat" in headrace("explain", path, "--plan", "flat").out


def test_the_plan_as_a_graph(headrace, session_file, tmp_path):
    path = session_file(queries=SLIDING)
    result = headrace("explain", path, "--graph")
    assert result.out == headrace("explain", path, "--graph", "text").out
    assert result.out.startswith("input t\n  → s0 group by t.k → t[t.k] ×2\n")
    assert "×8" in headrace("explain", path, "--graph", "--partitions", "8").out
    assert headrace("explain", path, "--graph", "mermaid").out.startswith("flowchart LR\n")
    assert headrace("explain", path, "--graph", "svg", "--out", tmp_path / "graph.svg").out == ""
    assert (tmp_path / "graph.svg").read_text().startswith("<svg ")
    assert headrace("explain", session_file(), "--graph").out == "no joins in SLIDING windows\n"


def test_invalid_graph_options_are_refused(headrace, session_file, tmp_path):
    path = session_file(queries=SLIDING)
    for options in (("--graph", "png"), ("svg",), ("--graph", "--json"), ("--graph", "--partitions", "0")):
        assert headrace("explain", path, *options).code == 2
    result = headrace("explain", path, "--graph", "--out", tmp_path / "nowhere" / "graph.svg")
    assert (result.code, "cannot write file" in result.err) == (1, True)

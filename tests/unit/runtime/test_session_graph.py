"""`Session.graph`: the physical plan of the sliding joins of a running session."""

from __future__ import annotations

import pytest

import headrace as hr

JOIN = "SELECT x.a FROM SLIDING(r, '5 s') x JOIN SLIDING(s, '5 s') y ON x.a = y.a"


def test_graph_shows_the_plan_in_force() -> None:
    with hr.Session(backend="local", partitions=3) as session:
        for name in "rs":
            session.create_stream(name, hr.MemorySource("a INT, b INT, time TIMESTAMP"), time="time")
        assert session.graph() == "no joins in SLIDING windows\n"
        session.add(JOIN, name="first")
        assert "output" not in session.graph()
        session.advance()
        assert "store r[r.a] ×3\n" in session.graph()
        session.add(f"{JOIN} AND x.b > y.b", name="second")
        session.advance()
        assert "probe r.a = s.a and r.b > s.b for second, of r" in session.graph()
        session.rescale(2)
        session.remove("first")
        session.advance()
        assert "output first" not in session.graph("text")
        assert "store r[r.a] ×2\n" in session.graph("text")
        assert session.graph("mermaid").startswith("flowchart LR\n")
        assert session.graph("svg").startswith("<svg ")
        assert "joins in SLIDING windows · used by 1 query: second" in session.explain()
        session.remove("second")
        session.advance()
        assert session.graph() == "no joins in SLIDING windows\n"


def test_an_unknown_graph_format_is_refused() -> None:
    with hr.Session(backend="local") as session, pytest.raises(hr.HeadraceError, match="forms: text, mermaid, svg"):
        session.graph("png")

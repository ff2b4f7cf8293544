"""The physical graph: kinds of edges, rules, shared paths, refusals, texts."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from example_graphs import BY, FOUR, RS, ST, THREE, setting, two_queries, two_way
from join_settings import drawn

from headrace.sharing.multiway.graph import Graph, Input, Keep, Kind, Node, Output, Probe, Store, build, from_tree
from headrace.sharing.multiway.graph_svg import to_svg
from headrace.sharing.multiway.graph_text import named, to_mermaid, to_text
from headrace.sharing.multiway.relations import Attribute, Join, equal, theta
from headrace.sharing.multiway.trees import flat, joined_trees, nested


def ways(graph: Graph) -> dict[tuple[str, str, str], str]:
    return {(edge.label, str(edge.source), str(edge.target)): edge.way for edge in graph.edges}


# ------------------------------------------------------------------------------------------------------------- kinds of edges


def test_a_join_of_two_at_random_keeps_by_shuffle_and_probes_all() -> None:
    assert ways(two_way(theta("R", "S", "R.x < S.y"))) == {
        ("s0", "R", "R ×3"): "shuffle",
        ("s1", "R", "S ×3"): "all",
        ("s2", "S ×3", "q"): "shuffle",
        ("s3", "S", "S ×3"): "shuffle",
        ("s4", "S", "R ×3"): "all",
        ("s5", "R ×3", "q"): "shuffle",
    }


def test_a_join_of_two_by_value_groups_everything_but_results() -> None:
    assert ways(two_way(RS, by={"R": BY["R"], "S": BY["S"]})) == {
        ("s0", "R", "R[R.a] ×3"): "group by R.a",
        ("s1", "R", "S[S.a] ×3"): "group by R.a",
        ("s2", "S[S.a] ×3", "q"): "shuffle",
        ("s3", "S", "S[S.a] ×3"): "group by S.a",
        ("s4", "S", "R[R.a] ×3"): "group by S.a",
        ("s5", "R[R.a] ×3", "q"): "shuffle",
    }


def test_stores_of_one_task_leave_no_choice() -> None:
    assert {edge.kind for edge in two_way(RS, tasks=1, by={"R": BY["R"]}).edges} == {Kind.SHUFFLE}


def test_rows_that_do_not_know_the_value_go_to_all() -> None:
    """S is partitioned by a, which T does not know; what S and T make knows it, and finds its partition of R."""
    graph = from_tree(flat("RST"), "q", setting(THREE))
    _, blind = graph.outgoing(Input("T"))
    assert (str(blind.target), blind.way) == ("S[S.a] ×3", "all")
    rule = next(rule for rule in graph.rules if rule.edge == blind.label)
    assert isinstance(rule, Probe)
    assert graph.edge(rule.sends[0]).way == "group by S.a"


# ---------------------------------------------------------------------------------------------------------------------- rules


def test_each_edge_into_a_store_has_one_rule_in_order() -> None:
    graph = from_tree(nested("RS", "TU"), "q", setting(FOUR))
    assert [rule.edge for rule in graph.rules] == [edge.label for edge in graph.edges if isinstance(edge.target, Store)]


def test_a_kept_join_is_filled_and_probed_and_its_rows_travel_on() -> None:
    """((R, S), T): rows of R and S go both ways from where they meet; T needs one hop."""
    graph = from_tree(nested("RS", "T"), "q", setting(THREE))
    kept = next(one for one in graph.stores if not one.relation.is_input)
    keeps = [rule for rule in graph.rules_at(kept) if isinstance(rule, Keep)]
    assert [str(graph.edge(rule.edge).source) for rule in keeps] == ["S[S.a] ×3", "R[R.a] ×3"]
    (probe,) = [rule for rule in graph.rules_at(kept) if isinstance(rule, Probe)]
    assert graph.edge(probe.edge).source == Input("T")
    assert probe.predicates == (ST,)
    assert [graph.edge(label).target for label in probe.sends] == [Output("q")]


def results(graph: Graph, label: str, rows: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """Follow rows over an edge; return what comes out of which output, and made of which inputs."""
    edge = graph.edge(label)
    if isinstance(edge.target, Output):
        return [(edge.target.query, rows)]
    rule = next(rule for rule in graph.rules if rule.edge == label)
    if isinstance(rule, Keep):
        return []
    assert isinstance(edge.target, Store)
    assert not rows & edge.target.relation.relations, "a row goes round"
    made = rows | edge.target.relation.relations
    return [one for sent in rule.sends for one in results(graph, sent, made)]


def test_rows_of_every_input_come_to_one_result_in_every_tree() -> None:
    for kind in ("chain", "star", "cycle", "clique"):
        case = drawn(1, "ABCD", kind)
        for tree in joined_trees(case.join):
            graph = from_tree(tree, "q", case)
            for node in graph.inputs:
                edges = graph.outgoing(node)
                found = [one for edge in edges for one in results(graph, edge.label, frozenset({node.name}))]
                assert found == [("q", frozenset("ABCD"))]


def test_every_predicate_is_checked_on_the_way_once() -> None:
    """Along each path from an input to the output, probes and what kept joins have already been checked for make the whole."""
    case = drawn(2, "ABCD", "clique")
    for tree in joined_trees(case.join):
        graph = from_tree(tree, "q", case)
        for edge in graph.edges:
            if isinstance(edge.target, Output):
                assert edge.rows == case.join
            rule = next((one for one in graph.rules if one.edge == edge.label), None)
            if isinstance(rule, Probe) and isinstance(edge.target, Store):
                checked = edge.rows.predicates, edge.target.relation.predicates, frozenset(rule.predicates)
                made = case.join.within(edge.rows.relations | edge.target.relation.relations)
                assert all(not one & two for one, two in combinations(checked, 2))
                assert frozenset().union(*checked) == made.predicates


# --------------------------------------------------------------------------------------------------------------- many queries


def test_orders_that_begin_alike_are_one_path() -> None:
    graph = two_queries()
    first = [edge for edge in graph.outgoing(Input("S")) if str(edge.target).startswith("T")]
    assert len(first) == 1
    rule = next(rule for rule in graph.rules if rule.edge == first[0].label)
    assert isinstance(rule, Probe)
    assert [str(graph.edge(label).target) for label in rule.sends] == ["S⋈T[S.a] ×4", "R[R.a] ×4", "U ×4"]


def test_equal_steps_with_other_predicates_are_not_one_path() -> None:
    other = equal(Attribute("R", "c"), Attribute("S", "c"))
    one, two = (Join(frozenset("RS"), frozenset({predicate})) for predicate in (RS, other))
    r, s = ((one.within(name), None) for name in "RS")
    orders = {(query, start): (step,) for query in ("q1", "q2") for start, step in (("R", s), ("S", r))}
    graph = build({"q1": one, "q2": two}, [Store(*r), Store(*s)], orders)
    probes = [rule.predicates for rule in graph.rules_at(Store(*s)) if isinstance(rule, Probe)]
    assert probes == [(RS,), (other,)]


def test_a_query_that_is_also_kept_is_answered_and_kept() -> None:
    pair = FOUR.within("RS")
    r, s, t, rs = ((FOUR.within(names), None) for names in ("R", "S", "T", "RS"))
    orders = {
        **{(goal, start): (step,) for goal in ("pair", pair) for start, step in (("R", s), ("S", r))},
        ("q", "R"): (s, t),
        ("q", "S"): (r, t),
        ("q", "T"): (rs,),
    }
    graph = build({"pair": pair, "q": THREE}, [Store(*one) for one in (r, s, t, rs)], orders)
    rule = next(rule for rule in graph.rules_at(Store(*s)) if isinstance(rule, Probe))
    assert sorted(str(graph.edge(label).target) for label in rule.sends) == ["R⋈S", "T", "pair"]


def test_equal_arguments_give_equal_graphs() -> None:
    assert two_queries() == two_queries()
    assert hash(two_queries()) == hash(two_queries())


# ------------------------------------------------------------------------------------------------------------------- refusals

R_STEP, S_STEP, T_STEP = ((THREE.within(name), None) for name in "RST")
PAIR = THREE.within("RS")


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ({("q", "R"): (S_STEP,)}, "there is no probe order of S for q"),
        ({("q", "R"): (S_STEP,), ("q", "S"): ()}, "a probe order of S ends at S and not at R⋈S"),
        ({("q", "R"): (S_STEP,), ("q", "S"): (T_STEP,)}, "there is no store T"),
        ({("q", "R"): (S_STEP,), ("q", "S"): (S_STEP,)}, "a probe order of S for R⋈S does not go by S"),
        (
            {("q", "R"): (S_STEP,), ("q", "S"): (R_STEP,), ("p", "R"): (S_STEP,)},
            "no query and no store for the probe orders of p",
        ),
    ],
)
def test_orders_that_lead_elsewhere_are_refused(orders: dict[tuple[str, str], tuple[object, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build({"q": PAIR}, [Store(*R_STEP), Store(*S_STEP)], orders)


def test_a_store_has_a_task_and_an_attribute_of_its_own() -> None:
    for wrong in ({"tasks": 0}, {"partitioned_by": Attribute("S", "a")}):
        with pytest.raises(ValueError, match="a store has a task or more"):
            Store(THREE.within("R"), **wrong)


# ------------------------------------------------------------------------------------------------------------------ as a text


def test_a_graph_as_text() -> None:
    assert to_text(from_tree(nested("RS", "T"), "q", setting(THREE, tasks=2))) == (
        """\
input R
  → s0 group by R.a → R[R.a] ×2
  → s1 group by R.a → S[S.a] ×2
input S
  → s5 group by S.a → S[S.a] ×2
  → s6 group by S.a → R[R.a] ×2
input T
  → s9 group by T.b → T[T.b] ×2
  → s10 all → R⋈S ×2
store R[R.a] ×2
  s0: keep, of R
  s6: probe R.a = S.a, of S
    → s7 shuffle → R⋈S ×2
    → s8 group by S.b → T[T.b] ×2
store S[S.a] ×2
  s1: probe R.a = S.a, of R
    → s2 shuffle → R⋈S ×2
    → s3 group by S.b → T[T.b] ×2
  s5: keep, of S
store T[T.b] ×2
  s3: probe S.b = T.b, of R⋈S
    → s4 shuffle → q
  s8: probe S.b = T.b, of R⋈S
    → s4 shuffle → q
  s9: keep, of T
store R⋈S ×2
  s2: keep, of R⋈S
  s7: keep, of R⋈S
  s10: probe S.b = T.b, of T
    → s11 shuffle → q
output q
  s4: R⋈S⋈T, from T[T.b] ×2
  s11: R⋈S⋈T, from R⋈S ×2
"""
    )


def test_stores_of_the_same_inputs_are_told_apart() -> None:
    other = equal(Attribute("R", "c"), Attribute("S", "c"))
    ones = [Store(Join(frozenset("RS"), frozenset({predicate}))) for predicate in (RS, other)]
    assert list(named(Graph((), tuple(ones), (), (), ())).values()) == ["R⋈S", "R⋈S #2"]


def test_an_input_a_store_and_an_output_may_have_one_name() -> None:
    nodes: list[Node] = [Input("R"), Store(THREE.within("R")), Output("R")]
    graph = Graph((Input("R"),), (Store(THREE.within("R")),), (Output("R"),), (), ())
    assert named(graph) == dict.fromkeys(nodes, "R")


def test_mermaid_has_every_node_and_edge() -> None:
    graph = two_queries()
    lines = to_mermaid(graph).splitlines()
    assert lines[0] == "flowchart LR"
    assert sum("|" in line for line in lines) == len(graph.edges)
    assert sum(bool(re.match(r"  n\d+[\[(]", line)) for line in lines) == 4 + 5 + 2
    styled = [n for line in lines if "linkStyle" in line for n in line.split()[1].split(",")]
    assert sorted(map(int, styled)) == list(range(len(graph.edges)))


HOSTILE = theta("<R&\"'>", "S#", "\"<script>\" & ']]>'")


def test_names_are_escaped() -> None:
    graph = two_way(HOSTILE)
    mermaid = to_mermaid(graph)
    assert '(["#lt;R#amp;#quot;\'#gt;"])' in mermaid
    assert "S#35;" in mermaid
    texts = [one.text for one in ET.fromstring(to_svg(graph)).findall(".//{*}text")]
    assert "<R&\"'>" in texts
    assert f"probe {HOSTILE}" in texts

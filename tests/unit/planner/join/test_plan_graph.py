"""Plans of sliding joins as graphs: kinds of edges, rules, shared paths, materialized joins, transitions, texts."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from example_graphs import (
    CHAIN,
    TWO,
    four_queries,
    make_orders,
    normalize_queries,
    plan_first_batch,
    plan_transition,
    sliding_join_sql,
    two_queries,
    two_way,
)

from headrace.planner.explain.plan_graph import GRAPH_FORMATS, build_physical_graph
from headrace.planner.explain.render_graph import (
    GraphEdgeKind,
    GraphNode,
    InputNode,
    KeepRule,
    OutputNode,
    PhysicalGraph,
    ProbeRule,
    StoreNode,
    name_nodes,
    render_mermaid,
    render_svg,
    render_text,
)
from headrace.planner.explain.text import explain_sliding_joins, plan_to_json
from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice


def list_routings(graph: PhysicalGraph) -> dict[tuple[str, str, str], str]:
    return {(edge.label, str(edge.source), str(edge.target)): edge.routing_text for edge in graph.edges}


# ----------------------------------------------------------------------------------------------------------------- kinds of edges


def test_a_join_by_a_comparison_stores_by_shuffle_and_probes_all_partitions() -> None:
    assert list_routings(two_way("R.a < S.b")) == {
        ("s0", "R", "R ×3"): "shuffle",
        ("s1", "R", "S ×3"): "all",
        ("s2", "S ×3", "q"): "shuffle",
        ("s3", "S", "S ×3"): "shuffle",
        ("s4", "S", "R ×3"): "all",
        ("s5", "R ×3", "q"): "shuffle",
    }


def test_a_join_by_an_equality_probes_the_partition_of_the_stored_row() -> None:
    assert list_routings(two_way("R.a = S.b")) == {
        ("s0", "R", "R[R.a] ×3"): "group by R.a",
        ("s1", "R", "S[S.b] ×3"): "group by R.a, local",
        ("s2", "S[S.b] ×3", "q"): "shuffle",
        ("s3", "S", "S[S.b] ×3"): "group by S.b",
        ("s4", "S", "R[R.a] ×3"): "group by S.b, local",
        ("s5", "R[R.a] ×3", "q"): "shuffle",
    }


def test_with_one_partition_every_edge_is_a_shuffle() -> None:
    for condition in ("R.a = S.b", "R.a < S.b"):
        assert {edge.kind for edge in two_way(condition, partitions=1).edges} == {GraphEdgeKind.SHUFFLE}


def test_rows_without_the_partitioning_attribute_probe_all_partitions() -> None:
    """S is partitioned by a, which T lacks; rows of S ⋈ T are in the partition of their partners in R."""
    graph = build_physical_graph(plan_first_batch(normalize_queries(q=sliding_join_sql("RST", CHAIN))), 3)
    _, broadcast = graph.list_outgoing(InputNode("T"))
    assert (str(broadcast.target), broadcast.routing_text) == ("S[S.a] ×3", "all")
    rule = next(rule for rule in graph.rules if rule.edge == broadcast.label)
    assert isinstance(rule, ProbeRule)
    assert graph.get_edge(rule.sends[0]).routing_text == "group by S.a, local"


# -------------------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("graph", [two_queries(), four_queries(), build_physical_graph(plan_transition(), 2)])
def test_each_edge_into_a_store_has_a_rule_in_the_same_order(graph: PhysicalGraph) -> None:
    assert [rule.edge for rule in graph.rules] == [edge.label for edge in graph.edges if isinstance(edge.target, StoreNode)]


def follow_rows(graph: PhysicalGraph, label: str, rows: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """Follow rows over an edge; return the outputs they reach, and the inputs joined on the way."""
    edge = graph.get_edge(label)
    if isinstance(edge.target, OutputNode):
        return [(edge.target.query, rows)]
    rule = next(rule for rule in graph.rules if rule.edge == label)
    assert isinstance(edge.target, StoreNode)
    assert edge.rows.relations == rows
    if isinstance(rule, KeepRule):
        assert edge.target.relation.relations == rows
        return []
    assert not rows & edge.target.relation.relations, "a row visits an input twice"
    joined = rows | edge.target.relation.relations
    return [result for sent in rule.sends for result in follow_rows(graph, sent, joined)]


def test_rows_of_every_input_reach_every_query_once() -> None:
    wanted = {"q1": "RST", "q2": "STU", "q3": "TUV", "q4": "RSTUV"}
    for graph in (two_queries(), four_queries()):
        for node in graph.inputs:
            found = [
                result for edge in graph.list_outgoing(node) for result in follow_rows(graph, edge.label, frozenset({node.name}))
            ]
            names = {output.query for output in graph.outputs}
            expected = {(name, frozenset(inputs)) for name, inputs in wanted.items() if node.name in inputs and name in names}
            assert len(found) == len(expected)
            assert set(found) == expected


def test_a_materialized_join_is_filled_and_probed() -> None:
    graph = two_queries()
    materialized = next(store for store in graph.stores if not store.relation.is_input)
    keeps = [rule for rule in graph.list_rules(materialized) if isinstance(rule, KeepRule)]
    assert [str(graph.get_edge(rule.edge).source) for rule in keeps] == ["T[T.b] ×4", "S[S.b] ×4"]
    (probe,) = [rule for rule in graph.list_rules(materialized) if isinstance(rule, ProbeRule)]
    assert graph.get_edge(probe.edge).source == InputNode("R")
    assert probe.conditions == ("R.a = S.a",)
    assert [graph.get_edge(label).target for label in probe.sends] == [OutputNode("q1")]


# ------------------------------------------------------------------------------------------------------------------- many queries


def test_orders_with_equal_prefixes_share_a_path() -> None:
    graph = two_queries()
    (first,) = [edge for edge in graph.list_outgoing(InputNode("S")) if str(edge.target).startswith("T")]
    rule = next(rule for rule in graph.rules if rule.edge == first.label)
    assert isinstance(rule, ProbeRule)
    assert [str(graph.get_edge(label).target) for label in rule.sends] == ["S⋈T[S.a] ×4", "R[R.a] ×4", "U ×4"]


def test_steps_with_different_equalities_do_not_share_a_path() -> None:
    found = normalize_queries(q1=sliding_join_sql("RS", "R.a = S.a"), q2=sliding_join_sql("RS", "R.b = S.b"))
    graph = build_physical_graph(plan_first_batch(found), 3)
    store = next(store for store in graph.stores if store.relation == input_relation("S"))
    assert [rule.conditions for rule in graph.list_rules(store) if isinstance(rule, ProbeRule)] == [
        ("R.a = S.a",),
        ("R.b = S.b",),
    ]


def test_conditions_of_some_queries_show_their_names() -> None:
    found = normalize_queries(q1=sliding_join_sql("RS", "R.a = S.a"), q2=sliding_join_sql("RS", "R.a = S.a AND R.b < S.b"))
    graph = build_physical_graph(plan_first_batch(found), 3)
    probes = [rule for rule in graph.rules if isinstance(rule, ProbeRule)]
    assert {rule.conditions for rule in probes} == {("R.a = S.a", "R.b < S.b for q2")}


def test_a_condition_of_three_relations_is_checked_at_the_last_probe() -> None:
    graph = build_physical_graph(
        plan_first_batch(normalize_queries(q=sliding_join_sql("RST", f"{CHAIN} AND R.c + S.c > T.c"))), 3
    )
    for rule in graph.rules:
        if isinstance(rule, ProbeRule):
            last = isinstance(graph.get_edge(rule.sends[0]).target, OutputNode)
            assert any("+" in text for text in rule.conditions) == last


def test_a_query_without_conditions_is_shown_as_probe_with_all() -> None:
    graph = build_physical_graph(plan_first_batch(normalize_queries(q=sliding_join_sql("RS", "TRUE"))), 3)
    assert "probe with all, of R" in render_text(graph)


def test_equal_plans_give_equal_graphs_and_no_plan_an_empty_one() -> None:
    assert two_queries() == two_queries()
    assert hash(two_queries()) == hash(two_queries())
    assert render_text(build_physical_graph(None, 2)) == "no joins in SLIDING windows\n"
    assert ET.fromstring(render_svg(build_physical_graph(None, 2))).get("class") == "hr-graph"
    assert render_mermaid(build_physical_graph(None, 2)) == "flowchart LR\n"


# -------------------------------------------------------------------------------------------------------------------- transitions


def test_old_stores_are_probed_until_their_rows_expire() -> None:
    """
    batch     3 ····· 7 ·····▶
    S by a    ████████              probed by new rows, for rows before batch 7
    S by b            ███████▶
    S⋈T               ███████▶      pairs of two older rows: S before 7, then T before 7
    """
    graph = build_physical_graph(plan_transition(), 2)
    old = next(store for store in graph.stores if store.until_batch is not None)
    assert (str(old), old.from_batch) == ("S[S.a] ×2 until batch 7", 0)
    rules = graph.list_rules(old)
    assert all(isinstance(rule, ProbeRule) and rule.before_batch == 7 for rule in rules)
    text = render_text(graph)
    assert "store S[S.a] ×2 until batch 7\n" in text
    assert "probe before batch 7 R.a = S.a, of R\n" in text
    older = [rule for rule in graph.rules if isinstance(rule, ProbeRule) and rule.before_batch == 7 and rule not in rules]
    assert {str(graph.get_edge(rule.edge).target) for rule in older} == {"T[T.b] ×2"}


def test_an_old_and_a_new_store_with_equal_partitioning_are_two_nodes() -> None:
    stores = (StoreNode(input_relation("S"), None, 2, 0, 4), StoreNode(input_relation("S"), None, 2, 9))
    assert list(name_nodes(PhysicalGraph((), stores, (), (), ())).values()) == ["S ×2 until batch 4", "S ×2"]


# ---------------------------------------------------------------------------------------------------------------------- as a text


def test_a_graph_as_text() -> None:
    found = normalize_queries(q=sliding_join_sql("RST", CHAIN))
    join = found[0].join_graph
    by = {"R": "R.a", "S": "S.a", "T": "T.b"}
    choice = ProbeOrderChoice(
        {0: make_orders(join, by, R="S T", S="R T", T="RS")}, {join.subgraph("RS"): make_orders(join, by, R="S", S="R")}
    )
    assert render_text(build_physical_graph(plan_first_batch(found, 2, choice), 2)) == (
        """\
input R
  → s0 group by R.a → R[R.a] ×2
  → s1 group by R.a, local → S[S.a] ×2
input S
  → s5 group by S.a → S[S.a] ×2
  → s6 group by S.a, local → R[R.a] ×2
input T
  → s9 group by T.b → T[T.b] ×2
  → s10 all → R⋈S ×2
store R[R.a] ×2
  s0: keep, of R
  s6: probe R.a = S.a, of S
    → s7 shuffle, local → R⋈S ×2
    → s8 group by S.b → T[T.b] ×2
store S[S.a] ×2
  s1: probe R.a = S.a, of R
    → s2 shuffle, local → R⋈S ×2
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


def test_stores_of_the_same_inputs_have_different_names() -> None:
    ones = [
        StoreNode(one.join_graph.subgraph("ST")) for one in (*normalize_queries(p=sliding_join_sql("ST", "S.a = T.a")), TWO[0])
    ]
    assert list(name_nodes(PhysicalGraph((), tuple(ones), (), (), ())).values()) == ["S⋈T", "S⋈T #2"]


def test_an_input_a_store_and_an_output_may_have_the_same_name() -> None:
    store = StoreNode(input_relation("R"))
    nodes: list[GraphNode] = [InputNode("R"), store, OutputNode("R")]
    assert name_nodes(PhysicalGraph((InputNode("R"),), (store,), (OutputNode("R"),), (), ())) == dict.fromkeys(nodes, "R")


def test_a_store_node_with_invalid_tasks_or_partitioning_is_refused() -> None:
    for wrong in ({"tasks": 0}, {"partitioned_by": Attribute("S", "a")}):
        with pytest.raises(ValueError, match="a store needs at least one task"):
            StoreNode(JoinGraph(frozenset("R")), **wrong)


def test_mermaid_has_every_node_and_edge() -> None:
    graph = two_queries()
    lines = render_mermaid(graph).splitlines()
    assert lines[0] == "flowchart LR"
    assert sum("|" in line for line in lines) == len(graph.edges)
    assert sum(bool(re.match(r"  n\d+[\[(]", line)) for line in lines) == 4 + 5 + 2
    styled = [n for line in lines if "linkStyle" in line for n in line.split()[1].split(",")]
    assert sorted(map(int, styled)) == list(range(len(graph.edges)))


def test_names_are_escaped() -> None:
    text = sliding_join_sql("RS", "concat(CAST(R.a AS STRING), '\"<script> & ]]>') = CAST(S.a AS STRING)")
    (query,) = normalize_queries(**{"<q&\"'>#": text})
    graph = build_physical_graph(plan_first_batch((query,)), 3)
    mermaid = render_mermaid(graph)
    assert '[["#lt;q#amp;#quot;\'#gt;#35;"]]' in mermaid
    texts = [one.text for one in ET.fromstring(render_svg(graph)).findall(".//{*}text")]
    assert "<q&\"'>#" in texts
    assert set(GRAPH_FORMATS) == {"text", "mermaid", "svg"}


# ---------------------------------------------------------------------------------------------------------------------- explained


def test_stores_and_probe_trees_are_explained() -> None:
    assert explain_sliding_joins(plan_transition())[1:12] == [
        "joins in SLIDING windows · used by 2 queries: q1, q2",
        "  store 0 of S by a · rows of batches 0 to 6, for 5 s · used by 2 queries: q1, q2",
        "  store 1 of T by b · rows since batch 0, for 5 s · used by 2 queries: q1, q2",
        "  store 2 of R by a · rows since batch 0, for 5 s · used by 1 query: q1",
        "  store 3 of U in any partition · rows since batch 0, for 5 s · used by 1 query: q2",
        "  store 4 of S⋈T by S.a, a materialized join · rows since batch 7 · used by 1 query: q1",
        "  store 5 of S by b · rows since batch 7, for 5 s · used by 2 queries: q1, q2",
        "  new rows of R",
        "    probe S⋈T (store 4) by R.a = S.a · used by 1 query: q1",
        "      → results of q1",
        "    probe S (store 0, rows before batch 7) by R.a = S.a · used by 1 query: q1",
    ]
    assert explain_sliding_joins(None) == []


def test_stores_and_probe_trees_as_json() -> None:
    document = plan_to_json(plan_first_batch(TWO, 2, ProbeOrderChoice({**plan_first_batch(TWO).choice.queries})))
    assert document["queries"] == ["q1", "q2"]
    assert {"store": 0, "relations": ["S"], "by": "S.a", "since": 0, "until": None, "queries": ["q1", "q2"]} in document["stores"]
    (probe,) = document["probes"]["R"]
    assert (probe["conditions"], probe["way"], probe["queries"], probe["results"]) == (["R.a = S.a"], "stored", ["q1"], [])
    assert [(child["way"], child["by"], child["results"]) for child in probe["then"]] == [("key", "S.b", ["q1"])]

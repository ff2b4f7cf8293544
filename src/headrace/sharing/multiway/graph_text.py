"""Text renderings of physical graphs: for a terminal, and for Mermaid."""

from __future__ import annotations

from headrace.sharing.multiway.graph import GraphEdgeKind, GraphNode, KeepRule, PhysicalGraph, StoreRule

_MERMAID_ARROWS = {GraphEdgeKind.GROUP_BY: "==>", GraphEdgeKind.ALL: "-.->", GraphEdgeKind.SHUFFLE: "-->"}
_MERMAID_COLOURS = {GraphEdgeKind.GROUP_BY: "#8250df", GraphEdgeKind.ALL: "#0969da", GraphEdgeKind.SHUFFLE: "#1a7f37"}
_MERMAID_ENTITIES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": " "})


def name_nodes(graph: PhysicalGraph) -> dict[GraphNode, str]:
    """Return a unique name for each node: stores of the same inputs with different predicates are numbered."""
    names: dict[GraphNode, str] = {}
    nodes: tuple[GraphNode, ...] = (*graph.inputs, *graph.stores, *graph.outputs)
    for node in nodes:
        kind = type(node)
        same_names = [name for other, name in names.items() if type(other) is kind and str(other) == str(node)]
        names[node] = f"{node} #{len(same_names) + 1}" if same_names else str(node)
    return names


def format_rule(rule: StoreRule) -> str:
    """Return the action of a rule, without the edges that it sends over."""
    if isinstance(rule, KeepRule):
        return "keep"
    before = "" if rule.before_batch is None else f" before batch {rule.before_batch}"
    return f"probe{before} {' and '.join(rule.conditions)}" if rule.conditions else f"probe{before} with all"


def render_text(graph: PhysicalGraph) -> str:
    """Return a graph as terminal text: each node with its edges, each store with its rules. Equal graphs give equal text."""
    lines = [*_format_inputs(graph), *_format_stores(graph), *_format_outputs(graph)]
    return "\n".join(lines or ["no joins in SLIDING windows"]) + "\n"


def _format_inputs(graph: PhysicalGraph) -> list[str]:
    lines = []
    for node in graph.inputs:
        lines += [f"input {node}", *_format_sent_edges(graph, [edge.label for edge in graph.list_outgoing(node)], "  ")]
    return lines


def _format_stores(graph: PhysicalGraph) -> list[str]:
    names, lines = name_nodes(graph), []
    for store in graph.stores:
        lines.append(f"store {names[store]}")
        for rule in graph.list_rules(store):
            lines.append(f"  {rule.edge}: {format_rule(rule)}, of {graph.get_edge(rule.edge).rows}")
            lines += [] if isinstance(rule, KeepRule) else _format_sent_edges(graph, rule.sends, "    ")
    return lines


def _format_outputs(graph: PhysicalGraph) -> list[str]:
    names, lines = name_nodes(graph), []
    for node in graph.outputs:
        lines.append(f"output {node}")
        lines += [f"  {edge.label}: {edge.rows}, from {names[edge.source]}" for edge in graph.list_incoming(node)]
    return lines


def _format_sent_edges(graph: PhysicalGraph, labels: list[str] | tuple[str, ...], indent: str) -> list[str]:
    names, edges = name_nodes(graph), [graph.get_edge(label) for label in labels]
    return [f"{indent}→ {edge.label} {edge.routing_text} → {names[edge.target]}" for edge in edges]


def render_mermaid(graph: PhysicalGraph) -> str:
    """Return a graph as a Mermaid flowchart: inputs, stores as cylinders, outputs; edges by kind, labelled with their rows."""
    names = name_nodes(graph)
    ids = {node: f"n{number}" for number, node in enumerate(names)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[node]}(["{_escape_mermaid(names[node])}"])' for node in graph.inputs]
    lines += [f'  {ids[node]}[("{_escape_mermaid(names[node])}")]' for node in graph.stores]
    lines += [f'  {ids[node]}[["{_escape_mermaid(names[node])}"]]' for node in graph.outputs]
    for edge in graph.edges:
        label = _escape_mermaid(f"{edge.label}: {edge.rows}" + ("" if edge.by is None else f" by {edge.by}"))
        lines.append(f'  {ids[edge.source]} {_MERMAID_ARROWS[edge.kind]}|"{label}"| {ids[edge.target]}')
    for kind in GraphEdgeKind:
        numbers = [str(number) for number, edge in enumerate(graph.edges) if edge.kind is kind]
        lines += [f"  linkStyle {','.join(numbers)} stroke:{_MERMAID_COLOURS[kind]}"] if numbers else []
    return "\n".join(lines) + "\n"


def _escape_mermaid(text: str) -> str:
    return text.translate(_MERMAID_ENTITIES)

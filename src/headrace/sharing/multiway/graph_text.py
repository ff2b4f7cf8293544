"""Text renderings of physical graphs: for a terminal, and for Mermaid."""

from __future__ import annotations

from headrace.sharing.multiway.graph import Graph, Keep, Kind, Node, Rule

_MERMAID_ARROWS = {Kind.GROUP_BY: "==>", Kind.ALL: "-.->", Kind.SHUFFLE: "-->"}
_MERMAID_COLOURS = {Kind.GROUP_BY: "#8250df", Kind.ALL: "#0969da", Kind.SHUFFLE: "#1a7f37"}
_MERMAID_ENTITIES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": " "})


def named(graph: Graph) -> dict[Node, str]:
    """Return a unique name for each node: stores of the same inputs with different predicates are numbered."""
    names: dict[Node, str] = {}
    nodes: tuple[Node, ...] = (*graph.inputs, *graph.stores, *graph.outputs)
    for node in nodes:
        kind = type(node)
        same_names = [name for other, name in names.items() if type(other) is kind and str(other) == str(node)]
        names[node] = f"{node} #{len(same_names) + 1}" if same_names else str(node)
    return names


def told(rule: Rule) -> str:
    """Return the action of a rule, without the edges that it sends over."""
    if isinstance(rule, Keep):
        return "keep"
    before = "" if rule.before is None else f" before batch {rule.before}"
    return f"probe{before} {' and '.join(rule.conditions)}" if rule.conditions else f"probe{before} with all"


def to_text(graph: Graph) -> str:
    """Return a graph as terminal text: each node with its edges, each store with its rules. Equal graphs give equal text."""
    lines = [*_inputs(graph), *_stores(graph), *_outputs(graph)]
    return "\n".join(lines or ["no joins in SLIDING windows"]) + "\n"


def _inputs(graph: Graph) -> list[str]:
    lines = []
    for node in graph.inputs:
        lines += [f"input {node}", *_sent(graph, [edge.label for edge in graph.outgoing(node)], "  ")]
    return lines


def _stores(graph: Graph) -> list[str]:
    names, lines = named(graph), []
    for store in graph.stores:
        lines.append(f"store {names[store]}")
        for rule in graph.rules_at(store):
            lines.append(f"  {rule.edge}: {told(rule)}, of {graph.edge(rule.edge).rows}")
            lines += [] if isinstance(rule, Keep) else _sent(graph, rule.sends, "    ")
    return lines


def _outputs(graph: Graph) -> list[str]:
    names, lines = named(graph), []
    for node in graph.outputs:
        lines.append(f"output {node}")
        lines += [f"  {edge.label}: {edge.rows}, from {names[edge.source]}" for edge in graph.incoming(node)]
    return lines


def _sent(graph: Graph, labels: list[str] | tuple[str, ...], indent: str) -> list[str]:
    names, edges = named(graph), [graph.edge(label) for label in labels]
    return [f"{indent}→ {edge.label} {edge.way} → {names[edge.target]}" for edge in edges]


def to_mermaid(graph: Graph) -> str:
    """Return a graph as a Mermaid flowchart: inputs, stores as cylinders, outputs; edges by kind, labelled with their rows."""
    names = named(graph)
    ids = {node: f"n{number}" for number, node in enumerate(names)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[node]}(["{_escaped(names[node])}"])' for node in graph.inputs]
    lines += [f'  {ids[node]}[("{_escaped(names[node])}")]' for node in graph.stores]
    lines += [f'  {ids[node]}[["{_escaped(names[node])}"]]' for node in graph.outputs]
    for edge in graph.edges:
        label = _escaped(f"{edge.label}: {edge.rows}" + ("" if edge.by is None else f" by {edge.by}"))
        lines.append(f'  {ids[edge.source]} {_MERMAID_ARROWS[edge.kind]}|"{label}"| {ids[edge.target]}')
    for kind in Kind:
        numbers = [str(number) for number, edge in enumerate(graph.edges) if edge.kind is kind]
        lines += [f"  linkStyle {','.join(numbers)} stroke:{_MERMAID_COLOURS[kind]}"] if numbers else []
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.translate(_MERMAID_ENTITIES)

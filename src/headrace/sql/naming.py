"""Derives the names of outputs without an alias: the column's name, else the text of the expression in Spark's format."""

from __future__ import annotations

from sqlglot import exp

_OPERATOR_SYMBOLS: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "div", exp.EQ: "=", exp.LT: "<",
    exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.And: "AND", exp.Or: "OR", exp.NullSafeEQ: "<=>",
}  # fmt: skip


def derive_output_name(node: exp.Expr) -> str:
    """Return the name of a SELECT item."""
    if isinstance(node, exp.Alias):
        return str(node.alias)
    if isinstance(node, exp.Column | exp.Dot):
        return str(node.name)
    return _render_node(node)


def _render_node(node: exp.Expr) -> str:
    if isinstance(node, exp.Column):
        return str(node.name)
    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Concat):  # adjacent string literals
        return "".join(_render_node(part) for part in node.expressions)
    if isinstance(node, exp.Paren):
        return _render_node(node.this)
    if isinstance(node, exp.Anonymous):
        return _render_call(node)
    if type(node) in _OPERATOR_SYMBOLS:
        return f"({_render_node(node.this)} {_OPERATOR_SYMBOLS[type(node)]} {_render_node(node.expression)})"
    if isinstance(node, exp.Cast):
        return f"CAST({_render_node(node.this)} AS {node.to.sql(dialect='spark').replace(', ', ',')})"
    if isinstance(node, exp.Neg):
        return f"(- {_render_node(node.this)})" if not isinstance(node.this, exp.Literal) else f"-{_render_node(node.this)}"
    return node.sql(dialect="spark")


def _render_call(node: exp.Anonymous) -> str:
    name = node.name.lower()
    args = ", ".join(_render_argument(arg) for arg in node.expressions)
    return f"{name}({'1' if name == 'count' and args == '*' else args})"


def _render_argument(node: exp.Expr) -> str:
    if isinstance(node, exp.Star):
        return "*"
    if isinstance(node, exp.Distinct):
        return f"DISTINCT {', '.join(_render_node(part) for part in node.expressions)}"
    return _render_node(node)

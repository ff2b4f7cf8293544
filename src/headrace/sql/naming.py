"""Derives the names of outputs without an alias: the column's name, else the text of the expression in Spark's format."""

from __future__ import annotations

from sqlglot import exp

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "div", exp.EQ: "=", exp.LT: "<",
    exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.And: "AND", exp.Or: "OR", exp.NullSafeEQ: "<=>",
}  # fmt: skip


def output_name(node: exp.Expr) -> str:
    """Return the name of a SELECT item."""
    if isinstance(node, exp.Alias):
        return str(node.alias)
    if isinstance(node, exp.Column | exp.Dot):
        return str(node.name)
    return _text(node)


def _text(node: exp.Expr) -> str:
    if isinstance(node, exp.Column):
        return str(node.name)
    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Concat):  # adjacent string literals
        return "".join(_text(part) for part in node.expressions)
    if isinstance(node, exp.Paren):
        return _text(node.this)
    if isinstance(node, exp.Anonymous):
        return _call(node)
    if type(node) in _OPERATORS:
        return f"({_text(node.this)} {_OPERATORS[type(node)]} {_text(node.expression)})"
    if isinstance(node, exp.Cast):
        return f"CAST({_text(node.this)} AS {node.to.sql(dialect='spark').replace(', ', ',')})"
    if isinstance(node, exp.Neg):
        return f"(- {_text(node.this)})" if not isinstance(node.this, exp.Literal) else f"-{_text(node.this)}"
    return node.sql(dialect="spark")


def _call(node: exp.Anonymous) -> str:
    name = node.name.lower()
    args = ", ".join(_argument(arg) for arg in node.expressions)
    return f"{name}({'1' if name == 'count' and args == '*' else args})"


def _argument(node: exp.Expr) -> str:
    if isinstance(node, exp.Star):
        return "*"
    if isinstance(node, exp.Distinct):
        return f"DISTINCT {', '.join(_text(part) for part in node.expressions)}"
    return _text(node)

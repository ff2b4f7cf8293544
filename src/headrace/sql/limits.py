"""Limits on the size of a query, checked when it is added, before it costs other queries anything.

Planning, serialization, shipping to workers and evaluation recurse over expressions. The depth limit keeps each of them within
the stack, even when called from deep code; the size limit keeps a short text from expanding to millions of terms when column
expressions of sub-queries replace their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from itertools import count

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import Call, Column, Expression, Literal
from headrace.model.window import HopWindow, format_duration

MAX_NESTING = 32  # nested parentheses, calls, CASEs, NOTs and sub-queries
MAX_TREE_DEPTH = 120  # of a syntax tree, and of an expression with sub-queries expanded: a chain of n ANDs has depth n
PARSER_STEPS_BASE, PARSER_STEPS_PER_TOKEN = 5_000, 5  # of the parser; a typical text takes two per token
MAX_TERMS = 10_000  # columns, constants and calls of a query with its sub-queries expanded
MAX_OUTPUTS = 500  # of a SELECT
MAX_GROUP_KEYS = 50  # of a GROUP BY
MAX_UNION_BRANCHES = 100  # SELECTs in a UNION ALL
MIN_SLIDE_MICROS = 1_000  # µs; every window start opens a slice for all queries that share the operator
MAX_WINDOWS_PER_ROW = 100_000  # a window of a day that slides by a second has 86,400


def nesting_error(levels: int | None = None, place: str = "") -> SqlError:
    """Return the error for a query nested deeper than `levels`."""
    detail = "" if levels is None else f"{levels} levels are possible"
    return SqlError("query is nested too deeply", place=place, detail=detail, hint="use IN (…) for many alternatives")


def parse_effort_error(place: str) -> SqlError:
    """Return the error for a text with too many possible parses."""
    hint = "write ON after every JOIN, and CAST(x AS type) instead of type(x)"
    return SqlError("query takes too long to read", place=place, detail="it could be read in very many ways", hint=hint)


def limit_error(number: int, limit: int, things: str, hint: str) -> SqlError:
    """Return the error for a count above its limit."""
    return SqlError(f"query has {number:,} {things}", detail=f"{limit:,} are possible", hint=hint)


def check_tree_depth(tree: exp.Expr) -> None:
    """Reject a syntax tree that is too deep for recursion."""
    level: list[exp.Expr] = [tree]
    for depth in count(1):
        if not level:
            return
        if depth > MAX_TREE_DEPTH:
            raise nesting_error(MAX_TREE_DEPTH)
        level = [child for node in level for child in node.iter_expressions()]


def check_plan_size(plan: object) -> None:
    """Reject a plan, or tuples of expressions, with too many terms, or too deep for recursion.

    The check counts the terms of the fully expanded expressions, but visits each shared expression once: the expansion, which
    nested sub-queries may double at every level, is never materialized.
    """
    terms, depth = _measure_expressions(tuple(_iter_expressions(plan)))
    if depth > MAX_TREE_DEPTH:
        raise nesting_error(MAX_TREE_DEPTH)
    if terms > MAX_TERMS:
        raise limit_error(terms, MAX_TERMS, "terms after its sub-queries are expanded", "use computed columns less often")


def _iter_expressions(plan: object) -> Iterator[Expression]:
    if isinstance(plan, Column | Literal | Call):
        yield plan
    elif isinstance(plan, tuple):
        for element in plan:
            yield from _iter_expressions(element)
    elif is_dataclass(plan):
        for field in fields(plan):
            yield from _iter_expressions(getattr(plan, field.name))


_LEAF_EXTENT = 1, 1  # terms and depth of a column or constant


def _measure_expressions(expressions: Iterable[Expression]) -> tuple[int, int]:
    """Return the number of terms, and the depth of the deepest expression."""
    measured: dict[int, tuple[int, int]] = {}
    terms = depth = 0
    for expression in expressions:
        stack = [expression]
        while stack:
            terms_below = depth_below = 0
            node, unmeasured = stack[-1], False
            for arg in node.args if isinstance(node, Call) else ():
                extent = measured.get(id(arg)) if isinstance(arg, Call) else _LEAF_EXTENT
                if extent is None:
                    stack.append(arg)
                    unmeasured = True
                else:
                    terms_below, depth_below = terms_below + extent[0], max(depth_below, extent[1])
            if not unmeasured:
                measured[id(stack.pop())] = 1 + terms_below, 1 + depth_below
        terms, depth = terms + measured[id(expression)][0], max(depth, measured[id(expression)][1])
    return terms, depth


def check_window_limits(window: HopWindow) -> None:
    """Reject windows that start so often, or overlap so much, that they would slow down all queries."""
    if window.slide < MIN_SLIDE_MICROS:
        raise SqlError(
            f"windows that start every {format_duration(window.slide)} are too frequent",
            detail=f"the shortest slide is {format_duration(MIN_SLIDE_MICROS)}",
            hint="use a longer slide, or SESSION windows",
        )
    windows = -(-window.size // window.slide)
    if windows > MAX_WINDOWS_PER_ROW:
        raise SqlError(
            f"each row would be in {windows:,} windows",
            detail=f"{MAX_WINDOWS_PER_ROW:,} are possible",
            hint=f"use a slide of {format_duration(-(-window.size // MAX_WINDOWS_PER_ROW))} or more, or a shorter window",
        )

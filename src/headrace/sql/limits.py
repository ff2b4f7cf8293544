"""How large a query may be; what is beyond is refused when it is added, before it costs others anything.

A query is planned, written down, sent to workers and evaluated by code that goes down its expressions. So all that is bound
here fits a stack wherever that is done, however deep it is already; and columns of sub-queries, which are put in place of their
names, cannot make a short text mean millions of terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from itertools import count

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import Call, Column, Expression, Literal
from headrace.model.window import Sliding, duration

NESTING = 32  # parentheses, calls, CASEs, NOTs and sub-queries inside of each other
LEVELS = 120  # of a syntax tree, and of an expression with its sub-queries in place: a chain of n ANDs has n
STEPS, STEPS_OF_A_TOKEN = 5_000, 5  # of the parser; usual texts take two for a token
TERMS = 10_000  # columns, constants and calls of a query with its sub-queries in place
OUTPUTS = 500  # of a SELECT
KEYS = 50  # of a GROUP BY
UNITED = 100  # SELECTs that UNION ALL puts together
SHORTEST_SLIDE = 1_000  # µs; for every window that begins there is a slice, for all queries that share it
WINDOWS_OF_A_ROW = 100_000  # a day every second has 86,400


def too_deep(levels: int | None = None, place: str = "") -> SqlError:
    """Return the refusal of what is nested deeper than so many levels."""
    detail = "" if levels is None else f"{levels} levels are possible"
    return SqlError("query is nested too deeply", place=place, detail=detail, hint="use IN (…) for many alternatives")


def too_slow(place: str) -> SqlError:
    """Return the refusal of what the parser would try in too many ways."""
    hint = "write ON after every JOIN, and CAST(x AS type) instead of type(x)"
    return SqlError("query takes too long to read", place=place, detail="it could be read in very many ways", hint=hint)


def too_many(number: int, most: int, what: str, hint: str) -> SqlError:
    """Return the refusal of more of something than there may be."""
    return SqlError(f"query has {number:,} {what}", detail=f"{most:,} are possible", hint=hint)


def check_tree(tree: exp.Expr) -> None:
    """Refuse a syntax tree that is too deep to go down."""
    level: list[exp.Expr] = [tree]
    for depth in count(1):
        if not level:
            return
        if depth > LEVELS:
            raise too_deep(LEVELS)
        level = [below for node in level for below in node.iter_expressions()]


def check_size(meaning: object) -> None:
    """Refuse a plan, or tuples of expressions, with too many terms, or one that is too deep to go down.

    Expressions are taken by what they are written out, but each is looked at once, wherever it is: what sub-queries double
    again and again is never written out.
    """
    terms, depth = _extent(tuple(_expressions(meaning)))
    if depth > LEVELS:
        raise too_deep(LEVELS)
    if terms > TERMS:
        raise too_many(terms, TERMS, "terms, its sub-queries in place", "compute less in columns that are used again and again")


def _expressions(meaning: object) -> Iterator[Expression]:
    if isinstance(meaning, Column | Literal | Call):
        yield meaning
    elif isinstance(meaning, tuple):
        for one in meaning:
            yield from _expressions(one)
    elif is_dataclass(meaning):
        for field in fields(meaning):
            yield from _expressions(getattr(meaning, field.name))


def _extent(expressions: Iterable[Expression]) -> tuple[int, int]:
    """Return how many terms there are, and the levels of the deepest."""
    known: dict[int, tuple[int, int]] = {}
    terms = depth = 0
    for expression in expressions:
        stack = [expression]
        while stack:
            args = stack[-1].args if isinstance(stack[-1], Call) else ()
            unknown = [arg for arg in args if id(arg) not in known]
            if unknown:
                stack += unknown
                continue
            below = [known[id(arg)] for arg in args]
            known[id(stack.pop())] = 1 + sum(one[0] for one in below), 1 + max((one[1] for one in below), default=0)
        terms, depth = terms + known[id(expression)][0], max(depth, known[id(expression)][1])
    return terms, depth


def check_window(window: Sliding) -> None:
    """Refuse windows that begin so often that they would keep everybody busy."""
    if window.slide < SHORTEST_SLIDE:
        raise SqlError(
            f"windows that begin every {duration(window.slide)} are too many",
            detail=f"they may begin every {duration(SHORTEST_SLIDE)}, or less often",
            hint="use a longer slide, or SESSION windows",
        )
    windows = -(-window.size // window.slide)
    if windows > WINDOWS_OF_A_ROW:
        raise SqlError(
            f"each row would be in {windows:,} windows",
            detail=f"{WINDOWS_OF_A_ROW:,} are possible",
            hint=f"use a slide of {duration(-(-window.size // WINDOWS_OF_A_ROW))} or more, or a shorter window",
        )

r"""Predicates over a text and a pattern: LIKE, ILIKE, RLIKE.

The pattern of LIKE is any STRING: a constant, a column – of the other side of a join, too – or computed. What follows the
escape character (a backslash, if ESCAPE does not name another) is meant literally, be it a wildcard or not; one at the end
stands for itself. So every pattern has a meaning, and none can fail when rows are there. Regular expressions are constants.
"""

from __future__ import annotations

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, Literal
from headrace.model.schema import type_name
from headrace.sql.casts import cast
from headrace.sql.coerce import NULL, STRING, boolean

_BACKSLASH = "\\"


def like(value: Expression, pattern: Expression, escape: str = _BACKSLASH) -> Expression:
    """Return `value LIKE pattern`; constants with another escape character are rewritten, others keep it as an argument."""
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        pattern, escape = Literal(_escaped(pattern.value, escape), STRING), _BACKSLASH
    more = () if escape == _BACKSLASH else (Literal(escape, STRING),)
    return boolean("like", _text(value, "LIKE"), _text(pattern, "LIKE"), *more)


def ilike(value: Expression, pattern: Expression) -> Expression:
    """Return `value ILIKE pattern`: both sides in small letters."""
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        return like(_lower(value), Literal(pattern.value.lower(), STRING))
    return like(_lower(value), _lower(_text(pattern, "ILIKE")))


def rlike(value: Expression, pattern: Expression) -> Expression:
    """Return `value RLIKE pattern`."""
    constant = Literal(constant_text(pattern, "the pattern"), STRING)
    return boolean("rlike", _text(value, "RLIKE"), constant)


def constant_text(value: Expression, what: str) -> str:
    """Return the value of a string literal; `what` names it in the refusal."""
    if isinstance(value, Literal) and isinstance(value.value, str):
        return value.value
    raise SqlError(f"{what} must be a string literal")


def _text(value: Expression, operator: str) -> Expression:
    if value.type not in (STRING, NULL):
        raise SqlError(f"{operator} needs a STRING, not {type_name(value.type)}", hint="CAST(… AS STRING)")
    return cast(value, STRING)


def _lower(value: Expression) -> Expression:
    return Call("lower", (cast(value, STRING),), STRING)


def _escaped(pattern: str, char: str) -> str:
    """Write a pattern with a backslash where it has the character, and with two where it has a backslash."""
    if char == _BACKSLASH:
        return pattern
    out, rest = "", iter(pattern)
    for letter in rest:
        if letter == char:
            out += f"\\{next(rest, char)}"
        else:
            out += "\\\\" if letter == "\\" else letter
    return out

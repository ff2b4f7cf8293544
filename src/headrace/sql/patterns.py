r"""Builds the pattern predicates LIKE, ILIKE and RLIKE.

The pattern of LIKE is any STRING: a constant, a column (also of the other side of a join) or a computed value. The escape
character (a backslash unless ESCAPE names another) makes the next character literal, wildcard or not; at the end of the pattern
it stands for itself. So every pattern is valid, and none fails at run time. The pattern of RLIKE must be a constant.
"""

from __future__ import annotations

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, Literal
from headrace.model.schema import type_name
from headrace.sql.casts import cast_to
from headrace.sql.coerce import NULL, STRING, boolean_call

_BACKSLASH = "\\"


def make_like(value: Expression, pattern: Expression, escape: str = _BACKSLASH) -> Expression:
    """Return `value LIKE pattern`; rewrite a constant pattern to backslash escapes, else pass the escape character on."""
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        pattern, escape = Literal(_rewrite_escapes(pattern.value, escape), STRING), _BACKSLASH
    escape_args = () if escape == _BACKSLASH else (Literal(escape, STRING),)
    return boolean_call("like", _require_string(value, "LIKE"), _require_string(pattern, "LIKE"), *escape_args)


def make_ilike(value: Expression, pattern: Expression) -> Expression:
    """Return `value ILIKE pattern`: LIKE with both sides in lower case."""
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        return make_like(_make_lower(value), Literal(pattern.value.lower(), STRING))
    return make_like(_make_lower(value), _make_lower(_require_string(pattern, "ILIKE")))


def make_rlike(value: Expression, pattern: Expression) -> Expression:
    """Return `value RLIKE pattern`."""
    constant = Literal(require_string_literal(pattern, "the pattern"), STRING)
    return boolean_call("rlike", _require_string(value, "RLIKE"), constant)


def require_string_literal(value: Expression, subject: str) -> str:
    """Return the value of a string literal; `subject` is named in the error message."""
    if isinstance(value, Literal) and isinstance(value.value, str):
        return value.value
    raise SqlError(f"{subject} must be a string literal")


def _require_string(value: Expression, construct: str) -> Expression:
    if value.type not in (STRING, NULL):
        raise SqlError(f"{construct} needs a STRING, not {type_name(value.type)}", hint="CAST(… AS STRING)")
    return cast_to(value, STRING)


def _make_lower(value: Expression) -> Expression:
    return Call("lower", (cast_to(value, STRING),), STRING)


def _rewrite_escapes(pattern: str, char: str) -> str:
    """Rewrite a pattern with escape character `char` as one with backslash escapes; double its own backslashes."""
    if char == _BACKSLASH:
        return pattern
    rewritten, letters = "", iter(pattern)
    for letter in letters:
        if letter == char:
            rewritten += f"\\{next(letters, char)}"
        else:
            rewritten += "\\\\" if letter == "\\" else letter
    return rewritten

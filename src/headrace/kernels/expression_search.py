"""Text search over columns: LIKE, RLIKE, starts_with, ends_with, contains; NULL if the text or the search string is NULL.

A search string that is the same on every row is one call of Arrow: LIKE without `_` and with `%` only at its ends is a plain
comparison, other patterns are RE2 regular expressions. A search string that varies by row (a column of the other side of a
join, `concat('%', s)`) is one compiled loop over all rows, at the same cost for few or for many distinct patterns: for texts
of 20 characters 35 ns per row for LIKE with a prefix, 100 ns with a `%` before other characters, 15 ns for `contains`. In
the worst case, for texts and patterns that are nearly periodic, the time per row is proportional to text × pattern.

Every LIKE pattern is valid: the character after the escape character is literal, wildcard or not, and an escape character
at the end stands for itself. So LIKE never fails at run time; a regular expression can, on the rows that have it. RLIKE
processes its patterns one by one: few are fast, many are not. SQL allows only constant patterns for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import compiled_text
from headrace.kernels.expression_values import Kernel, Outcome, Value, is_scalar, nulls, outcome, spread
from headrace.model.expression import Call

_ESCAPE = "\\"
_NOTHING = np.frombuffer(b"\0", np.uint8)  # read-only, like arrays over Arrow buffers, so that numba compiles no second version
_Texts: TypeAlias = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]

# --- constant search strings -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _tokens(pattern: str, escape: str) -> tuple[str, ...]:
    """Split into `%`, `_` and literals; a leading backslash marks a literal."""
    tokens: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character in "%_" and character != escape:
            tokens.append(character)
            continue
        literal = next(characters, escape) if character == escape else character
        if tokens and tokens[-1].startswith("\\"):
            tokens[-1] += literal
        else:
            tokens.append("\\" + literal)
    return tuple(tokens)


def _like_constant(text: pa.Array, pattern: str, escape: str) -> pa.Array:
    tokens = _tokens(pattern, escape)
    shape = "".join(token if token in ("%", "_") else "x" for token in tokens)
    pieces = [token[1:] for token in tokens if token.startswith("\\")]
    if shape in _SHAPES:
        return _SHAPES[shape](text, pieces[0] if pieces else "")
    regex = "".join({"%": ".*", "_": "."}.get(token) or _quote(token[1:]) for token in tokens)
    return pc.match_substring_regex(text, pattern=rf"\A(?s:{regex})\z")


def _quote(literal: str) -> str:
    """Quote for RE2, which supports fewer escapes than Python."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", literal)


def _starts_with(text: pa.Array, piece: str) -> pa.Array:
    return pc.starts_with(text, pattern=piece)


def _ends_with(text: pa.Array, piece: str) -> pa.Array:
    return pc.ends_with(text, pattern=piece)


def _contains(text: pa.Array, piece: str) -> pa.Array:
    return pc.match_substring(text, pattern=piece)


_SHAPES: dict[str, Callable[[pa.Array, str], pa.Array]] = {
    "": pc.equal,
    "x": pc.equal,
    "x%": _starts_with,
    "%x": _ends_with,
    "%x%": _contains,
}

# --- search strings by row ---------------------------------------------------------------------------------------------


def _varying(call: Call, args: Sequence[Value], compiled: Callable[..., npt.NDArray[np.bool_]], *more: object) -> pa.Array:
    """Run a kernel of `engine.kernels.like` over texts and search strings, at least one of which is an array."""
    text, search = spread(args)
    if not len(text):
        return pa.nulls(0, call.type)
    return pa.array(compiled(*_bytes(text), *_bytes(search), *more), mask=nulls(text, search))


def _bytes(text: pa.Array) -> _Texts:
    """Return the bytes of all rows and the start of each row, without a copy; there must be at least one row."""
    _, starts, data = text.buffers()
    filled = data is not None and data.size
    return np.frombuffer(data, np.uint8) if filled else _NOTHING, np.frombuffer(starts, np.int32, len(text) + 1, text.offset * 4)


def _searched(constant: Callable[[pa.Array, str], pa.Array], compiled: Callable[..., npt.NDArray[np.bool_]]) -> Kernel:
    """Make a predicate of a text and a search string from a kernel for constants and a compiled loop for arrays."""

    def kernel(call: Call, args: Sequence[Value]) -> Value:
        text, search = args
        if not is_scalar(search):
            return _varying(call, args, compiled)
        return constant(text, search.as_py()) if search.is_valid else pa.nulls(len(text), call.type)

    return kernel


def _like(call: Call, args: Sequence[Value]) -> Value:
    """Match whole texts; the optional third argument is the constant escape character, a backslash by default."""
    text, pattern = args[:2]
    escape = args[2].as_py() if args[2:] else _ESCAPE
    if not is_scalar(pattern):
        return _varying(call, args[:2], compiled_text.like, np.frombuffer(escape.encode(), np.uint8))
    return _like_constant(text, pattern.as_py(), escape) if pattern.is_valid else pa.nulls(len(text), call.type)


# --- regular expressions -----------------------------------------------------------------------------------------------


def _rlike(call: Call, args: Sequence[Value]) -> Value | Outcome:
    """Search by RE2; an invalid pattern is an error on every row."""
    text, pattern = args
    if not is_scalar(pattern):
        return _rlike_varying(call, text, pattern)
    if not pattern.is_valid:
        return pa.nulls(len(text), call.type)
    try:
        return pc.match_substring_regex(text, pattern=pattern.as_py())
    except pa.ArrowInvalid:
        message = f"invalid regular expression '{pattern.as_py()}'"
        return outcome(pa.nulls(len(text), call.type), pc.is_valid(text), message)


def _rlike_varying(call: Call, text: Value, pattern: pa.Array) -> Outcome:
    """Search pattern by pattern, each over the rows that have it."""
    text = spread([text, pattern])[0]
    patterns = [single for single in pattern.unique() if single.is_valid]
    value, failed = pa.nulls(len(text), call.type), pa.repeat(False, len(text))
    message = ""
    for single in patterns:
        rows = pc.fill_null(pc.equal(pattern, single), False)
        part = _rlike(call, [text.filter(rows), single])
        if isinstance(part, Outcome):
            message, failed = part.message or message, pc.or_(failed, rows)
        else:
            value = pc.replace_with_mask(value, rows, part)
    return outcome(value, pc.and_(failed, pc.is_valid(text)), message)


KERNELS: dict[str, Kernel] = {
    "like": _like,
    "rlike": _rlike,
    "starts_with": _searched(_starts_with, compiled_text.starts_with),
    "ends_with": _searched(_ends_with, compiled_text.ends_with),
    "contains": _searched(_contains, compiled_text.contains),
}

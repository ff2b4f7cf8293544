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

from headrace.engine.compute.columns import (
    EvaluationResult,
    Kernel,
    Value,
    broadcast_args,
    build_arrow_result,
    is_scalar,
    null_mask,
)
from headrace.engine.kernels import like as like_kernels
from headrace.model.expression import Call

_DEFAULT_ESCAPE = "\\"
_EMPTY_BYTES = np.frombuffer(
    b"\0", np.uint8
)  # read-only, like arrays over Arrow buffers, so that numba compiles no second version
_TextBuffers: TypeAlias = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]

# --- constant search strings -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _tokenize_like(pattern: str, escape: str) -> tuple[str, ...]:
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


def _match_constant_like(text: pa.Array, pattern: str, escape: str) -> pa.Array:
    tokens = _tokenize_like(pattern, escape)
    shape = "".join(token if token in ("%", "_") else "x" for token in tokens)
    pieces = [token[1:] for token in tokens if token.startswith("\\")]
    if shape in _LIKE_SHAPES:
        return _LIKE_SHAPES[shape](text, pieces[0] if pieces else "")
    regex = "".join({"%": ".*", "_": "."}.get(token) or _quote_regex(token[1:]) for token in tokens)
    return pc.match_substring_regex(text, pattern=rf"\A(?s:{regex})\z")


def _quote_regex(literal: str) -> str:
    """Quote for RE2, which supports fewer escapes than Python."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", literal)


def _starts_with(text: pa.Array, piece: str) -> pa.Array:
    return pc.starts_with(text, pattern=piece)


def _ends_with(text: pa.Array, piece: str) -> pa.Array:
    return pc.ends_with(text, pattern=piece)


def _contains_text(text: pa.Array, piece: str) -> pa.Array:
    return pc.match_substring(text, pattern=piece)


_LIKE_SHAPES: dict[str, Callable[[pa.Array, str], pa.Array]] = {
    "": pc.equal,
    "x": pc.equal,
    "x%": _starts_with,
    "%x": _ends_with,
    "%x%": _contains_text,
}

# --- search strings by row ---------------------------------------------------------------------------------------------


def _search_by_row(call: Call, args: Sequence[Value], compiled: Callable[..., npt.NDArray[np.bool_]], *more: object) -> pa.Array:
    """Run a kernel of `engine.kernels.like` over texts and search strings, at least one of which is an array."""
    text, search = broadcast_args(args)
    if not len(text):
        return pa.nulls(0, call.type)
    return pa.array(compiled(*_text_buffers(text), *_text_buffers(search), *more), mask=null_mask(text, search))


def _text_buffers(text: pa.Array) -> _TextBuffers:
    """Return the bytes of all rows and the start of each row, without a copy; there must be at least one row."""
    _, starts, data = text.buffers()
    filled = data is not None and data.size
    return np.frombuffer(data, np.uint8) if filled else _EMPTY_BYTES, np.frombuffer(
        starts, np.int32, len(text) + 1, text.offset * 4
    )


def _make_search(constant: Callable[[pa.Array, str], pa.Array], compiled: Callable[..., npt.NDArray[np.bool_]]) -> Kernel:
    """Make a predicate of a text and a search string from a kernel for constants and a compiled loop for arrays."""

    def kernel(call: Call, args: Sequence[Value]) -> Value:
        text, search = args
        if not is_scalar(search):
            return _search_by_row(call, args, compiled)
        return constant(text, search.as_py()) if search.is_valid else pa.nulls(len(text), call.type)

    return kernel


def _match_like(call: Call, args: Sequence[Value]) -> Value:
    """Match whole texts; the optional third argument is the constant escape character, a backslash by default."""
    text, pattern = args[:2]
    escape = args[2].as_py() if args[2:] else _DEFAULT_ESCAPE
    if not is_scalar(pattern):
        return _search_by_row(call, args[:2], like_kernels.match_like, np.frombuffer(escape.encode(), np.uint8))
    return _match_constant_like(text, pattern.as_py(), escape) if pattern.is_valid else pa.nulls(len(text), call.type)


# --- regular expressions -----------------------------------------------------------------------------------------------


def _match_regex(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
    """Search by RE2; an invalid pattern is an error on every row."""
    text, pattern = args
    if not is_scalar(pattern):
        return _match_regex_by_row(call, text, pattern)
    if not pattern.is_valid:
        return pa.nulls(len(text), call.type)
    try:
        return pc.match_substring_regex(text, pattern=pattern.as_py())
    except pa.ArrowInvalid:
        message = f"invalid regular expression '{pattern.as_py()}'"
        return build_arrow_result(pa.nulls(len(text), call.type), pc.is_valid(text), message)


def _match_regex_by_row(call: Call, text: Value, pattern: pa.Array) -> EvaluationResult:
    """Search pattern by pattern, each over the rows that have it."""
    text = broadcast_args([text, pattern])[0]
    patterns = [single for single in pattern.unique() if single.is_valid]
    value, failed = pa.nulls(len(text), call.type), pa.repeat(False, len(text))
    message = ""
    for single in patterns:
        rows = pc.fill_null(pc.equal(pattern, single), False)
        part = _match_regex(call, [text.filter(rows), single])
        if isinstance(part, EvaluationResult):
            message, failed = part.message or message, pc.or_(failed, rows)
        else:
            value = pc.replace_with_mask(value, rows, part)
    return build_arrow_result(value, pc.and_(failed, pc.is_valid(text)), message)


KERNELS: dict[str, Kernel] = {
    "like": _match_like,
    "rlike": _match_regex,
    "starts_with": _make_search(_starts_with, like_kernels.starts_with),
    "ends_with": _make_search(_ends_with, like_kernels.ends_with),
    "contains": _make_search(_contains_text, like_kernels.contains_text),
}

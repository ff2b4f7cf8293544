"""Places of errors, mapped from a query to its statement, and from a statement to the source text."""

from __future__ import annotations

import re

from headrace.cli.shell.scan import StatementText
from headrace.errors import HeadraceError
from headrace.sql.parse import SqlSource

_PLACE_PATTERN = re.compile(r"line (\d+), column (\d+):")


def shift_place(error: HeadraceError, line: int, column: int) -> HeadraceError:
    """Return the error with its place in a larger text, in which the erroneous text starts at a line and a column."""
    match = _PLACE_PATTERN.match(error.place)
    if match is None:
        return error
    return _replace_place(error, _format_place(int(match[1]), int(match[2]), line, column) + error.place[match.end() :])


def place_in_source(error: HeadraceError, source: StatementText) -> HeadraceError:
    """Return the error of a statement with its line and column in the source text, and the line of the statement."""
    match = _PLACE_PATTERN.match(error.place)
    if match is None:
        return error
    line, column = int(match[1]), int(match[2])
    line_start = sum(len(text) + 1 for text in source.text.split("\n")[: line - 1])
    _, _, excerpt = SqlSource(source.text).format_location(line_start + column - 1).partition("\n")
    return _replace_place(error, f"{_format_place(line, column, source.line, source.column)}\n{excerpt}")


def _format_place(line: int, column: int, begin_line: int, begin_column: int) -> str:
    return f"line {line + begin_line - 1}, column {column + begin_column - 1 if line == 1 else column}:"


def _replace_place(error: HeadraceError, place: str) -> HeadraceError:
    return type(error)(error.message, place=place, detail=error.detail, hint=error.hint)

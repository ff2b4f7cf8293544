"""Where an error is: its place in a query, in the statement around it, in the script around that."""

from __future__ import annotations

import re

from headrace.cli.shell.scan import Piece
from headrace.errors import HeadraceError
from headrace.sql.parse import Source

_PLACE = re.compile(r"line (\d+), column (\d+):")


def moved(error: HeadraceError, line: int, column: int) -> HeadraceError:
    """Return the error of a text with its place in a larger one, in which the text begins at a line and a column."""
    match = _PLACE.match(error.place)
    if match is None:
        return error
    return _with_place(error, _label(int(match[1]), int(match[2]), line, column) + error.place[match.end() :])


def in_piece(error: HeadraceError, piece: Piece) -> HeadraceError:
    """Return the error of a statement with its place in what was typed: the line as it stands there, and its number there."""
    match = _PLACE.match(error.place)
    if match is None:
        return error
    line, column = int(match[1]), int(match[2])
    begin = sum(len(text) + 1 for text in piece.text.split("\n")[: line - 1])
    _, _, drawn = Source(piece.text).place(begin + column - 1).partition("\n")
    return _with_place(error, f"{_label(line, column, piece.line, piece.column)}\n{drawn}")


def _label(line: int, column: int, begin_line: int, begin_column: int) -> str:
    return f"line {line + begin_line - 1}, column {column + begin_column - 1 if line == 1 else column}:"


def _with_place(error: HeadraceError, place: str) -> HeadraceError:
    return type(error)(error.message, place=place, detail=error.detail, hint=error.hint)

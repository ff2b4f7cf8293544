r"""Translates the regular expressions of RLIKE, which are Java's, to a syntax that every evaluator reads in the same way.

The result has literals, `|`, groups, quantifiers, classes of characters and ranges, `\d`, `\w` and their complements, `\b`, `\B`,
`^` (the start of the text) and `\z` (its end): RE2 and Python's `re` with the flag ASCII agree on these. Where Java differs, the
translation writes the meaning out: `.` matches no line terminator, of which Java has six; `$` also matches before one at the end
of the text; `\s` contains U+000B; under `(?i)` only ASCII letters match in both cases.

What cannot be written this way is rejected: back-references, look-around, possessive quantifiers, `(?m)`, `(?x)`, `(?u)`, classes
inside classes, `&&`, Unicode properties, repetitions above 1000, and `$` before more of the pattern. `\b` is that of Java 19.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SqlError

_LINE_ENDS = "\n\r\x85\u2028\u2029"
_END = f"(?:\r\n|[{_LINE_ENDS}])?\\z"
_SURROGATES = range(0xD800, 0xE000)
_MAX_REPETITIONS = 1000
_LAST_CHARACTER = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]


def _ranges(text: str) -> Ranges:
    """Return the ranges of characters and of pairs like `a-z`."""
    parts = re.findall(r".-.|.", text, re.DOTALL)
    return tuple((ord(part[0]), ord(part[-1])) for part in parts)


def _complement(ranges: Ranges) -> Ranges:
    result, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            result.append((begin, low - 1))
        begin = max(begin, high + 1)
    return (*result, (begin, _LAST_CHARACTER)) if begin <= _LAST_CHARACTER else tuple(result)


_CLASSES = {
    "d": _ranges("0-9"),
    "w": _ranges("a-zA-Z0-9_"),
    "s": _ranges("\t-\r "),
    "h": _ranges(" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"),
    "v": _ranges("\n-\r\x85\u2028\u2029"),
}
_CLASSES |= {name.upper(): _complement(ranges) for name, ranges in _CLASSES.items()}
_PORTABLE_CLASSES = "dDwW"
_POSIX_CLASSES = {
    "Lower": _ranges("a-z"), "Upper": _ranges("A-Z"), "ASCII": ((0, 127),), "Alpha": _ranges("a-zA-Z"), "Digit": _ranges("0-9"),
    "Alnum": _ranges("a-zA-Z0-9"), "Punct": _ranges("!-/:-@[-`{-~"), "Graph": ((33, 126),), "Print": ((32, 126),),
    "Blank": _ranges(" \t"), "Cntrl": ((0, 31), (127, 127)), "XDigit": _ranges("0-9a-fA-F"), "Space": _ranges("\t-\r "),
}  # fmt: skip
_CONTROL_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_CODE_ESCAPE = re.compile(r"x([\da-fA-F]{2})|x\{([\da-fA-F]{1,6})\}|u([\da-fA-F]{4})|0([0-3]?[0-7]{1,2})")
_POSIX_ESCAPE = re.compile(r"[pP]\{(\w+)\}")
_QUANTIFIER = re.compile(r"([*+?]|\{(\d+)(?:,(\d*))?\})([?+]?)")
_GROUP_START = re.compile(r"\((?:\?(?:<[a-zA-Z][a-zA-Z\d]*>|([is]*)(?:-([is]+))?(:|\))))?")
_METACHARACTERS = frozenset("\\.+*?()|[]{}^$-&~#")


@dataclass(frozen=True, slots=True)
class _Flags:
    """The flags in effect: `(?i)` and `(?s)`."""

    ignore_case: bool = False
    dot_all: bool = False


class _Translator:
    """Reads one pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0

    def translate(self) -> str:
        result, _ = self._read_alternatives(_Flags(), nested=False)
        return result

    def _reject(self, reason: str) -> SqlError:
        return SqlError(f"regular expression '{self._pattern}' is not supported: {reason}", detail=f"at character {self._at + 1}")

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _match(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        match = expected.match(self._pattern, self._at)
        if match:
            self._at = match.end()
        return match

    def _read_alternatives(self, flags: _Flags, *, nested: bool) -> tuple[str, _Flags]:
        """Read up to the end of the group or of the pattern; flags set inside hold up to there."""
        parts: list[str] = []
        while self._peek() and not (nested and self._peek() == ")"):
            if self._peek() == "|":
                parts.append("|")
                self._at += 1
                continue
            atom, flags = self._read_atom(flags)
            parts.append(atom + self._read_quantifier(atom))
        if nested:
            if not self._peek():
                raise self._reject("a group is not closed")
            self._at += 1
        return "".join(parts), flags

    def _read_atom(self, flags: _Flags) -> tuple[str, _Flags]:
        char = self._peek()
        if char == "(":
            return self._read_group(flags)
        if char in "*+?{)":
            raise self._reject(f"'{char}' is out of place")
        if char == "[":
            return self._read_class(flags), flags
        if char == "\\":
            return self._read_escape(flags), flags
        self._at += 1
        if char == ".":
            return "[\0-\U0010ffff]" if flags.dot_all else f"[^{_LINE_ENDS}]", flags
        if char == "$":
            return self._make_end(), flags
        return "^" if char == "^" else _write_literal(char, flags), flags

    def _make_end(self) -> str:
        """Write `$`: the end, or before a line terminator at the end; as it consumes that, nothing may follow."""
        if self._peek() not in ("", "|", ")"):
            raise self._reject("'$' must be at the end")
        return _END

    def _read_group(self, flags: _Flags) -> tuple[str, _Flags]:
        match = self._match(_GROUP_START)
        if not match or (match[0] == "(" and self._peek() == "?"):
            raise self._reject("only plain and named groups and the flags i and s are known")
        inner = flags
        for name, value in ((match[1], True), (match[2], False)):
            inner = replace(
                inner,
                ignore_case=value if "i" in (name or "") else inner.ignore_case,
                dot_all=value if "s" in (name or "") else inner.dot_all,
            )
        if match[3] == ")":  # flags for the rest of the enclosing group
            return "", inner
        content, _ = self._read_alternatives(inner, nested=True)
        if _END in content:
            self._make_end()
        return f"(?:{content})", flags

    def _read_quantifier(self, atom: str) -> str:
        match = self._match(_QUANTIFIER)
        if not match:
            return ""
        self._check_quantifier(match, atom)
        return match[0]

    def _check_quantifier(self, match: re.Match[str], atom: str) -> None:
        low, high = int(match[2] or 0), int(match[3] or match[2] or 0)
        if match[4] == "+":
            raise self._reject("a quantifier is possessive")
        if max(low, high) > _MAX_REPETITIONS:
            raise self._reject(f"a repetition exceeds {_MAX_REPETITIONS}")
        if high < low or atom in ("", "^", "\\z", "\\b", "\\B") or atom.endswith("\\z") or self._peek() in tuple("*+?{"):
            raise self._reject("a quantifier is out of place")

    def _read_escape(self, flags: _Flags) -> str:
        """Read an escape outside classes."""
        self._at += 1
        char = self._peek()
        if char in ("A", "z", "Z", "b", "B"):
            self._at += 1
            return {"A": "^", "Z": ""}.get(char, f"\\{char}") or self._make_end()
        if char == "Q":
            return self._read_quotation(flags)
        if char and char in _PORTABLE_CLASSES:
            self._at += 1
            return f"\\{char}"
        ranges = self._read_escaped_ranges()
        return (
            _write_class(ranges, flags)
            if len(ranges) > 1 or ranges[0][0] != ranges[0][1]
            else _write_literal(chr(ranges[0][0]), flags)
        )

    def _read_quotation(self, flags: _Flags) -> str:
        text, _, _ = self._pattern[self._at + 1 :].partition("\\E")
        self._at = min(len(self._pattern), self._at + 1 + len(text) + 2)
        return f"(?:{''.join(_write_literal(char, flags) for char in text)})"

    def _read_escaped_ranges(self) -> Ranges:
        """Read what follows a backslash as a character or a set of characters."""
        if match := self._match(_CODE_ESCAPE):
            code = int(match[1] or match[2] or match[3] or "0", 16) if match[4] is None else int(match[4], 8)
            if code > _LAST_CHARACTER or code in _SURROGATES:
                raise self._reject("a code is no character")
            return ((code, code),)
        if match := self._match(_POSIX_ESCAPE):
            if match[1] not in _POSIX_CLASSES:
                raise self._reject(f"the property '{match[1]}' is not known")
            ranges = _POSIX_CLASSES[match[1]]
            return ranges if match[0].startswith("p") else _complement(ranges)
        char = self._peek()
        if char in _CLASSES:
            self._at += 1
            return _CLASSES[char]
        if not char or (char.isascii() and char.isalnum() and char not in _CONTROL_ESCAPES):
            raise self._reject(f"the escape '\\{char}' is not known")
        self._at += 1
        return _ranges(_CONTROL_ESCAPES.get(char, char))

    def _read_class(self, flags: _Flags) -> str:
        """Read `[…]`, without classes or intersections inside."""
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]" or not ranges:
            ranges += self._read_class_item()
        self._at += 1
        return _write_class(tuple(ranges), flags, negated=negated)

    def _read_class_item(self) -> Ranges:
        first = self._read_class_characters()
        is_single = len(first) == 1 and first[0][0] == first[0][1]
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return first
        self._at += 1
        last = self._read_class_characters()
        if not is_single or len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < first[0][0]:
            raise self._reject("a range of characters is invalid")
        return ((first[0][0], last[0][0]),)

    def _read_class_characters(self) -> Ranges:
        char = self._peek()
        if not char:
            raise self._reject("a class is not closed")
        if char in "[]" or self._pattern.startswith("&&", self._at):
            raise self._reject(f"'{char}' inside a class must be escaped")
        self._at += 1
        return self._read_escaped_ranges() if char == "\\" else _ranges(char)


def translate_regex(pattern: str) -> str:
    """Return the pattern of an `rlike` call; SqlError without a location if it is invalid or has no equal meaning."""
    translated = _Translator(pattern).translate()
    try:
        pc.match_substring_regex(pa.array([""]), pattern=translated)
    except pa.ArrowInvalid as problem:  # for example, nested repetitions are too large together
        raise SqlError(f"regular expression '{pattern}' is not supported", detail=str(problem)) from None
    return translated


def _write_literal(char: str, flags: _Flags) -> str:
    if flags.ignore_case and char.isascii() and char.isalpha():
        return f"[{char.lower()}{char.upper()}]"
    return _escape(char)


def _escape(char: str) -> str:
    return f"\\{char}" if char in _METACHARACTERS else char


def _write_class(ranges: Ranges, flags: _Flags, *, negated: bool = False) -> str:
    if flags.ignore_case:
        ranges += tuple(swapped for low, high in ranges for swapped in _swap_case(low, high))
    items = (_escape(chr(low)) if low == high else f"{_escape(chr(low))}-{_escape(chr(high))}" for low, high in ranges)
    return f"[{'^' if negated else ''}{''.join(items)}]"


def _swap_case(low: int, high: int) -> Ranges:
    """Return the ASCII letters of the range, in the other case."""
    overlaps = ((max(low, ord(first)), min(high, ord(first) + 25), shift) for first, shift in (("a", -32), ("A", 32)))
    return tuple((begin + shift, end + shift) for begin, end, shift in overlaps if begin <= end)

"""Names of streams, queries, functions and users: what a name may contain, everywhere that a name is given.

Names appear in logs, terminals, pages, URLs and file names. The rules keep a name from being invisible there, from looking like
another one, and from meaning a folder.
"""

from __future__ import annotations

import unicodedata

from headrace.errors import SchemaError

MAX_NAME_CHARACTERS = 200
_FORBIDDEN_CATEGORIES = {
    "Cc": "control character",
    "Cf": "format character",  # such as marks that reverse the direction of text, and spaces of no width
    "Cs": "surrogate",
    "Zl": "line separator",
    "Zp": "paragraph separator",
}


def check_name(kind: str, name: object) -> None:
    """Check a new name; `kind` names the thing in errors, such as "stream". Raises SchemaError for an invalid name.

    Names in a checkpoint are not checked again: older versions accepted names that are invalid now.
    """
    if not isinstance(name, str) or not name.strip():
        raise _make_error(kind, name, "it is blank" if isinstance(name, str) else "it is no text")
    if len(name) > MAX_NAME_CHARACTERS:
        raise _make_error(kind, name[:20] + "…", f"it has {len(name):,} characters; at most {MAX_NAME_CHARACTERS} are allowed")
    if name != name.strip():
        raise _make_error(kind, name, "it starts or ends with white space")
    if name in {".", ".."}:
        raise _make_error(kind, name, "in a path it means a folder")
    for position, character in enumerate(name, 1):
        category = _FORBIDDEN_CATEGORIES.get(unicodedata.category(character))
        if category is not None:
            raise _make_error(kind, name, f"character {position} is U+{ord(character):04X}, a {category}")


def _make_error(kind: str, name: object, reason: str) -> SchemaError:
    shown = ascii(name) if isinstance(name, str) and not name.isprintable() else repr(name)
    hint = f"use 1 to {MAX_NAME_CHARACTERS} visible characters, without spaces at the ends"
    return SchemaError(f"invalid {kind} name {shown}", detail=reason, hint=hint)

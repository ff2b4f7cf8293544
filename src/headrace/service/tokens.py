"""Who may do what: a token stands for a role and a user.

On loopback without tokens everybody is the administrator: whoever can connect could read the checkpoint, too. Elsewhere a
request carries `Authorization: Bearer TOKEN`. Tokens are kept as digests and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from headrace.errors import HeadraceError


class Role(IntEnum):
    """Each may do what those before it may: see everything, change queries and rows, declare streams."""

    read = 1
    write = 2
    admin = 3


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose request it is."""

    user: str
    role: Role


ANYBODY = Holder("", Role.admin)
"""Of every request where no tokens are asked for."""


class Tokens:
    """The tokens of a service; none means that none are asked for."""

    def __init__(self, holders: Iterable[tuple[str, Holder]] = ()) -> None:
        """Take (token, holder)."""
        self._holders = [(_digest(token), holder) for token, holder in holders]

    @property
    def required(self) -> bool:
        """Whether a request needs one."""
        return bool(self._holders)

    def holder(self, token: str | None) -> Holder | None:
        """Return whose token it is; None if nobody's."""
        if not self.required:
            return ANYBODY
        given, found = _digest(token or ""), None
        for digest, holder in self._holders:  # all of them, so that time tells nothing
            if hmac.compare_digest(digest, given):
                found = holder
        return found

    @staticmethod
    def load(path: Path) -> Tokens:
        """Read lines of role, user and token; # begins a comment."""
        holders: dict[str, Holder] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise HeadraceError(f"token file '{path}' cannot be read", detail=str(error)) from error
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 3 or words[0] not in Role.__members__:
                hint = f"write a role ({', '.join(Role.__members__)}), a user and a token: 'write ann 1f0c…'"
                raise HeadraceError(f"line {number} of token file '{path}' is not understood", hint=hint)
            if len(words[2]) < _SHORTEST:
                raise HeadraceError(f"the token in line {number} of '{path}' has less than {_SHORTEST} characters")
            holders[words[2]] = Holder(words[1], Role[words[0]])
        if not holders:
            raise HeadraceError(f"token file '{path}' has no token")
        return Tokens(holders.items())

    @staticmethod
    def make(path: Path) -> Tokens:
        """Write a file with one new token for each role, for its owner's eyes only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text("".join(f"{role.name} {role.name} {secrets.token_urlsafe(24)}\n" for role in Role), encoding="utf-8")
        return Tokens.load(path)


_SHORTEST = 16


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()

"""Authentication and authorization: a token identifies a user and a role.

On loopback without tokens every request has the role admin, because a local process can read the checkpoint anyway. Otherwise
a request must carry `Authorization: Bearer TOKEN`. Tokens are stored as digests and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from headrace.errors import HeadraceError


def is_loopback(name: str) -> bool:
    """Return whether a host name or address, without a port, is loopback."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


class Role(IntEnum):
    """What a user may do; each role includes those before it.

    `read` reads everything, `write` also changes queries and appends rows, `admin` also declares streams.
    """

    read = 1
    write = 2
    admin = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and role of a request."""

    user: str
    role: Role


ANONYMOUS_ADMIN = Identity("", Role.admin)
"""The identity of every request to a service that requires no tokens."""


class TokenRegistry:
    """The tokens that a service accepts; an empty registry requires no tokens."""

    def __init__(self, identities: Iterable[tuple[str, Identity]] = ()) -> None:
        """Take pairs of a token and its identity."""
        self._identities = [(_digest_token(token), identity) for token, identity in identities]

    @property
    def required(self) -> bool:
        """Whether requests need a token."""
        return bool(self._identities)

    def identify(self, token: str | None) -> Identity | None:
        """Return the identity of a token; None if the token is unknown."""
        if not self.required:
            return ANONYMOUS_ADMIN
        wanted, match = _digest_token(token or ""), None
        for digest, identity in self._identities:  # no early exit: the time must not depend on the token
            if hmac.compare_digest(digest, wanted):
                match = identity
        return match

    @staticmethod
    def load(path: Path) -> TokenRegistry:
        """Read a file with a role, a user and a token on each line; # starts a comment."""
        identities: dict[str, Identity] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise HeadraceError(f"cannot read token file '{path}'", detail=str(error)) from error
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 3 or words[0] not in Role.__members__:
                hint = f"write a role ({', '.join(Role.__members__)}), a user and a token: 'write ann 1f0c…'"
                raise HeadraceError(f"invalid line {number} in token file '{path}'", hint=hint)
            if len(words[2]) < _MIN_TOKEN_LENGTH:
                raise HeadraceError(f"the token in line {number} of '{path}' has fewer than {_MIN_TOKEN_LENGTH} characters")
            identities[words[2]] = Identity(words[1], Role[words[0]])
        if not identities:
            raise HeadraceError(f"token file '{path}' has no token")
        return TokenRegistry(identities.items())

    @staticmethod
    def create_file(path: Path) -> TokenRegistry:
        """Write a file with a new token for each role, readable by its owner only, and load it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text("".join(f"{role.name} {role.name} {secrets.token_urlsafe(24)}\n" for role in Role), encoding="utf-8")
        return TokenRegistry.load(path)


_MIN_TOKEN_LENGTH = 16


def _digest_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()

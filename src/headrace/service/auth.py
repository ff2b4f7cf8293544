"""Authentication and authorization: a token identifies a user and a role.

On loopback without tokens every request has the role admin, because a local process can read the checkpoint anyway. Otherwise
a request must carry `Authorization: Bearer TOKEN`. Tokens are stored as digests and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.model.budget import BUDGET_NAMES
from headrace.model.names import check_name
from headrace.service.problems import HttpRequestError
from headrace.storage.posix import write_atomically


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

    `read` reads everything but reports, `write` also appends rows, adds queries and changes its own queries, `write:all` also
    changes the queries of others, `admin` also declares streams and reads reports.
    """

    read = 1
    write = 2
    write_all = 3
    admin = 4

    @property
    def label(self) -> str:
        """The role as token files and messages spell it."""
        return self.name.replace("_", ":")


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and role of a request."""

    user: str
    role: Role
    budget: tuple[tuple[str, int], ...] = ()  # limits of a QueryBudget by name, for the queries of the user

    def may_change(self, owner: str) -> bool:
        """Return whether the user may replace or remove a query of this owner."""
        return self.role >= Role.write_all or (self.role >= Role.write and self.user == owner)


def check_role(holder: Identity, role: Role) -> None:
    """Raise HttpRequestError if the user of a request does not have a role."""
    if holder.role < role:
        message = f"user '{holder.user}' has only the role {holder.role.label}"
        raise HttpRequestError(403, message, hint=f"use a token with the role {role.label}")


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
        """Read a file with a role, a user, a token and optional budgets on each line; a `#` that starts a word starts a comment.

        A budget is a word such as `output_rows=1000000`; all lines of a user have the same ones. Raises HeadraceError, with the
        line, for anything else, and if other users of the machine can read or write the file.
        """
        identities: dict[str, Identity] = {}
        lines: dict[str, int] = {}
        budgets: dict[str, tuple[tuple[str, int], ...]] = {}
        for number, line in enumerate(_read_private_file(path).splitlines(), 1):
            words = _COMMENT_PATTERN.sub("", line).split()
            if not words:
                continue
            try:
                token, identity = _parse_entry(words, lines)
                _check_same_budget(identity, budgets)
            except HeadraceError as error:
                message = f"invalid line {number} in token file '{path}': {error.message}"
                raise HeadraceError(message, detail=error.detail, hint=error.hint) from None
            identities[token], lines[token] = identity, number
        if not identities:
            raise HeadraceError(f"token file '{path}' has no token")
        return TokenRegistry(identities.items())

    @staticmethod
    def create_file(path: Path) -> TokenRegistry:
        """Write a file with a new token for each of the roles read, write and admin, for its owner only, and load it."""
        lines = [f"{role.label} {role.label} {secrets.token_urlsafe(24)}\n" for role in (Role.read, Role.write, Role.admin)]

        def write_private(hidden: Path) -> None:
            hidden.touch(mode=0o600)
            hidden.write_text("".join(lines), encoding="utf-8")

        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write_private)
        return TokenRegistry.load(path)


_MIN_TOKEN_LENGTH = 16
_COMMENT_PATTERN = re.compile(r"(^|\s)#.*")
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)  # the characters of a bearer token in RFC 6750
_GENERATION_HINT = "make a new token: openssl rand -hex 24"
_LIMIT_PATTERN = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_ROLES_BY_LABEL = {role.label: role for role in Role}


def _parse_entry(words: Sequence[str], known_lines: Mapping[str, int]) -> tuple[str, Identity]:
    """Return the token and the identity of a line, given the lines of earlier tokens; messages never quote a token."""
    hint = f"write a role ({', '.join(_ROLES_BY_LABEL)}), a user and a token: 'write ann 1f0c…'"
    if len(words) < 3:
        raise HeadraceError(f"it has {len(words)} words, not 3 or more", hint=hint)
    label, user, token = words[:3]
    if label not in _ROLES_BY_LABEL:
        raise HeadraceError(f"unknown role '{label[:40]}'", hint=hint)
    check_name("user", user)
    if len(token) < _MIN_TOKEN_LENGTH:
        raise HeadraceError(f"its token has fewer than {_MIN_TOKEN_LENGTH} characters", hint=_GENERATION_HINT)
    if not _TOKEN_PATTERN.fullmatch(token):
        raise HeadraceError("its token has characters that a header cannot carry", hint=_GENERATION_HINT)
    if token in known_lines:
        raise HeadraceError(f"its token is also in line {known_lines[token]}", hint=_GENERATION_HINT)
    return token, Identity(user, _ROLES_BY_LABEL[label], _parse_budget(words[3:]))


def _parse_budget(words: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the limits of a budget; messages do not quote the words, of which one may be a token in the wrong place."""
    limits: dict[str, int] = {}
    for number, word in enumerate(words, 4):
        name, _, limit = word.partition("=")
        if name not in BUDGET_NAMES or not _LIMIT_PATTERN.fullmatch(limit):
            hint = f"after the token, write budgets only: {'=…, '.join(BUDGET_NAMES)}=…"
            raise HeadraceError(f"its word {number} is not a budget", hint=hint)
        if name in limits:
            raise HeadraceError(f"it has two budgets {name}")
        limits[name] = int(limit)
    return tuple(sorted(limits.items()))


def _check_same_budget(identity: Identity, known: dict[str, tuple[tuple[str, int], ...]]) -> None:
    """Raise HeadraceError if an earlier line gives the same user another budget."""
    if known.setdefault(identity.user, identity.budget) != identity.budget:
        raise HeadraceError(
            f"user '{identity.user}' has another budget in an earlier line", hint="give all lines the same budget"
        )


def _read_private_file(path: Path) -> str:
    """Return the text of a file that only its owner may read and write; raises HeadraceError for any other file."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise HeadraceError(f"cannot read token file '{path}'", detail=str(error)) from error
    if os.name == "posix" and mode & _FOREIGN_ACCESS:
        raise HeadraceError(
            f"other users can read or write token file '{path}'", detail=f"its mode is {mode & 0o777:o}", hint=f"chmod 600 {path}"
        )
    return text


_FOREIGN_ACCESS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def _digest_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()

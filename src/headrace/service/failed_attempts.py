"""Slows down the guessing of tokens: after repeated wrong tokens from one address, each further answer takes longer.

Only answers to wrong tokens wait, in the event loop: no thread is held, and a request with a valid token is never delayed, not
even from an address that guesses. A valid token does not reset the count, or a guesser with one token could reset it at will.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

_FREE_ATTEMPTS = 3
_FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 2.0
_FORGET_SECONDS = 300.0
_MAX_ADDRESSES = 4_096
_IPV6_PREFIX_BITS = 64  # a single customer has all addresses of such a network


class _Attempts(NamedTuple):
    failures: int
    last_at: float


class FailedAttempts:
    """The wrong tokens of recent minutes, counted by client address; used by the event loop only."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_addresses: int = _MAX_ADDRESSES,
    ) -> None:
        """Take a clock in seconds; above `max_addresses`, the address with the oldest failure is forgotten."""
        self._clock, self._sleep, self._max_addresses = clock, sleep, max_addresses
        self._attempts: OrderedDict[str, _Attempts] = OrderedDict()

    async def delay_answer(self, address: str) -> None:
        """Count a wrong token from an address, and wait as long as the answer must."""
        seconds = self.record_failure(address)
        if seconds > 0:
            await self._sleep(seconds)

    def record_failure(self, address: str) -> float:
        """Count a wrong token and return the seconds to wait before the answer: 0 at first, then twice as long each time."""
        key, now = _group_address(address), self._clock()
        previous = self._attempts.pop(key, None)
        is_recent = previous is not None and now - previous.last_at < _FORGET_SECONDS
        count = previous.failures + 1 if previous is not None and is_recent else 1
        self._attempts[key] = _Attempts(count, now)
        if len(self._attempts) > self._max_addresses:
            self._attempts.popitem(last=False)
        return compute_delay(count)


def compute_delay(failures: int) -> float:
    """Return the delay after a number of failures, in seconds."""
    doublings = failures - _FREE_ATTEMPTS - 1
    return 0.0 if doublings < 0 else min(_FIRST_DELAY_SECONDS * 2.0 ** min(doublings, 10), MAX_DELAY_SECONDS)


def _group_address(address: str) -> str:
    """Return the key of an address: all IPv6 addresses of a /64 network have the same."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX_BITS), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)

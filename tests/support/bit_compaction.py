"""Frequent compaction of the bits of joins, for tests: a session would need more than 64 joins for the first one."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any
from unittest import mock

from headrace.planner import changelog


@contextlib.contextmanager
def compact_often() -> Iterator[None]:
    """Let new joins take bits around the end of the first word, and compact them at about half of the changelogs.

    Both depend on the live queries alone, so a batch that is run again decides as before.
    """

    def iter_late_bits(*args: Any) -> Iterator[int]:
        return (bit for bit in iter_free_bits(*args) if bit >= 61)

    def choose_limit(bits: Collection[int]) -> int | None:
        return len(bits) if sum(bits) % 2 and max(bits) >= len(bits) else None

    iter_free_bits = changelog._iter_free_bits
    with mock.patch.multiple(changelog, _iter_free_bits=iter_late_bits, choose_bit_limit=choose_limit):
        yield

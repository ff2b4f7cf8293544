"""The bits of live queries in query-sets: which query a bit stands for, when bits move, and how stored query-sets are read then.

A new query takes the lowest free bit. Where queries were removed, bits stay free, and the rest may need more words than there are
queries for. Then the bits of the last words move to free ones below, at a changelog:

    before   ┃a · · b · ·┃· c · · d ·┃      two words
    after    ┃a c d b · ·┃                  one word; the changelog-set has the bits of a and b

Stored query-sets are not rewritten: they are translated when they are read. What a bit of a stored row stands for is known from
the plan of its epoch (window joins), or from the batch that defined its query-set (sliding joins). The bits that stand for the
same query then and now are the changelog-set of AStream (equation 4.1); only the others are moved one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.model.record import record

WORD_BITS = 64
_FREE_SHARE = 4  # after a compaction, one bit in so many is free, so that the next additions need no further word


@record("former-bit")
@dataclass(frozen=True, slots=True)
class FormerBit:
    """A bit that stood for a query in query-sets of batches before `until_batch`."""

    bit: int
    until_batch: int


def find_bit_at(bit: int, former_bits: Iterable[FormerBit], batch: int) -> int:
    """Return the bit of a query in query-sets that a batch defined; `former_bits` are in the order of time."""
    return next((former.bit for former in former_bits if batch < former.until_batch), bit)


def choose_bit_limit(bits: Collection[int]) -> int | None:
    """Return the number of bits to which queries with these bits should be compacted, or None if that does not pay.

    It pays when it saves a word of every query-set. As a quarter of the bits stays free, there is at most one compaction for 16
    additions, however queries come and go: each stored row is translated a bounded number of times.
    """
    words = max(bits, default=0) // WORD_BITS + 1
    needed_words = max(1, -(-len(bits) * _FREE_SHARE // ((_FREE_SHARE - 1) * WORD_BITS)))
    return needed_words * WORD_BITS if needed_words < words else None


def move_bits(bit_by_query: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return the new bits of the queries whose bit is not below the limit: the lowest free ones, in the order of the bits."""
    taken = set(bit_by_query.values())
    free = (bit for bit in range(limit) if bit not in taken)
    moving = sorted((bit, query) for query, bit in bit_by_query.items() if bit >= limit)
    return {query: next(free) for _, query in moving}


@dataclass(frozen=True, slots=True)
class BitTranslation:
    """From bits at one time to bits at another: those of `changelog_set` stay, `moved` are (from, to), others vanish."""

    changelog_set: frozenset[int]
    moved: tuple[tuple[int, int], ...]

    def keeps(self, bits: Iterable[int]) -> bool:
        """Return whether all of these bits stand for the same query at both times."""
        return self.changelog_set.issuperset(bits)


def translate_bits(before: Mapping[int, int], after: Mapping[int, int]) -> BitTranslation:
    """Return the translation between two times; the arguments map queries to their bits."""
    pairs = [(bit, after[query]) for query, bit in before.items() if query in after]
    return BitTranslation(
        frozenset(bit for bit, new_bit in pairs if bit == new_bit), tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))
    )

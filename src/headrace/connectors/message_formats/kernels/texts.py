"""Text columns: copied from the messages into one buffer."""

from __future__ import annotations

from headrace.connectors.message_formats.kernels.decoded import DOUBLED, ESCAPED, PRESENT
from headrace.connectors.message_formats.kernels.json_text import unescape
from headrace.connectors.message_formats.kernels.memory import copy_bytes, inner, jit, load_byte, store_byte


@inner
def _copy_single(target, source, end):
    """Copy a text with one quote for each two, and return the end of the copy."""
    while source < end:
        byte = load_byte(source)
        store_byte(target, byte)
        source += 2 if byte == 34 else 1
        target += 1
    return target


@jit
def gather_texts(states, addresses, sizes, offsets, target):
    """Copy the texts of a column back to back, with their ends in `offsets`; the target has 8 bytes more than all texts."""
    start = at = target
    offsets[0] = 0
    for row in range(states.size):
        if states[row] == PRESENT:
            size = sizes[row]
            if size & DOUBLED:
                at = _copy_single(at, addresses[row], addresses[row] + (size ^ DOUBLED))
            elif size & ESCAPED:
                at = unescape(at, addresses[row], addresses[row] + (size ^ ESCAPED))
            else:
                copy_bytes(at, addresses[row], size)
                at += size
        offsets[row + 1] = at - start


@jit
def sum_sizes(states, sizes):
    """Return the number of bytes of the texts of a column, before escapes are replaced."""
    total = 0
    for row in range(states.size):
        if states[row] == PRESENT:
            total += sizes[row] & (ESCAPED - 1)
    return total

"""The check sum of everything that recovery reads: XXH3 with 64 bits, which runs at memory speed."""

from __future__ import annotations

from typing import Any

import xxhash


def compute_checksum(content: Any) -> str:
    """Return the check sum of bytes, or of any buffer, as 16 hexadecimal digits."""
    return str(xxhash.xxh3_64_hexdigest(content))


def compute_checksum_number(content: Any) -> int:
    """Return the check sum of bytes, or of any buffer, as a number."""
    return int(xxhash.xxh3_64_intdigest(content))

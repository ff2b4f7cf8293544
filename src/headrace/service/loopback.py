"""Recognition of loopback host names."""

from __future__ import annotations

import ipaddress


def is_loopback(name: str) -> bool:
    """Return whether a host name or address, without a port, is loopback."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False

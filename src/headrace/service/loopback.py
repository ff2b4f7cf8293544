"""Names of this machine that nobody else can reach it by."""

from __future__ import annotations

import ipaddress


def is_loopback(name: str) -> bool:
    """Tell whether a host, without its port, is loopback."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False

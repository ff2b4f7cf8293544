"""Certificates for tests of TLS, made by the openssl of the system."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """The PEM files of a certificate and its key."""

    chain: Path
    key: Path


def make_certificate(folder: Path, name: str, *options: str) -> Certificate:
    """Make a self-signed certificate for 127.0.0.1."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(made.key), "-out", str(made.chain)]
    subprocess.run([*command, *subject, *files, *(options or ("-nodes",))], check=True, capture_output=True)
    return made

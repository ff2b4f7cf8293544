"""TLS of the service: the certificate and key of `serve --tls-cert FILE --tls-key FILE`."""

from __future__ import annotations

import ssl
from pathlib import Path

from headrace.errors import HeadraceError


def load_tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server with a certificate chain and its key, both PEM; raises HeadraceError if they do not fit.

    The key must not be encrypted: a service is started without a terminal.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise HeadraceError(
            f"cannot use certificate '{certificate}' with key '{key}'",
            detail=str(error),
            hint="give a PEM file with the certificate chain, and one with its key, not encrypted",
        ) from error
    return context

"""Environment variables of object stores: those of the driver travel to the workers with each job, as storage options do.

Only values that mean the same on every machine travel, no paths of files. A worker that has credentials of a provider in its own
environment keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_PROVIDERS = (
    (
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ALLOW_HTTP",
    ),
    ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    (
        "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_TOKEN", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_STORAGE_ENDPOINT",
    ),
)  # fmt: skip
_applied: dict[str, str] = {}
"""What this process has set; a newer job may replace it, such as a token that was renewed."""


def read_provider_environment() -> dict[str, str]:
    """Return the variables of this process that workers need, too."""
    return {name: os.environ[name] for names in _PROVIDERS for name in names if name in os.environ}


def apply_provider_environment(variables: Mapping[str, str]) -> None:
    """Set the variables of a job in this process, but for providers that it has variables of its own for."""
    if not variables:
        return  # this runs for every task, and there are none without an object store
    for names in _PROVIDERS:
        if any(os.environ.get(name) != _applied.get(name) for name in names if name in os.environ):
            continue
        for name in names:
            if name in variables and variables[name] != os.environ.get(name):
                os.environ[name] = _applied[name] = variables[name]

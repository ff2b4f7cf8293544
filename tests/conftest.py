"""What all tests share: in CI the drawn examples are the same in every run, so that a failure is the change's own."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, database=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

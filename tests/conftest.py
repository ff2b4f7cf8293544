"""What all tests share: no example is timed, and in CI the drawn ones are the same in every run.

A machine that is busy must not fail a test, and a failure in CI must be the change's own.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("headrace", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "headrace")

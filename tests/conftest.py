"""Hypothesis settings of all tests: examples have no deadline, and in CI they are the same in every run.

A busy machine must not fail a test, and a failure in CI must come from the change under test.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("headrace", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "headrace")

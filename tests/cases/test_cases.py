"""The cases beside this file (`*.case`) on the reference. `tests/conformance` runs them on every back-end."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from support.case_runner import CASES, run_case


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case(case: Path):
    with hr.Session(backend="reference") as session:
        run_case(case, session)

"""docs/api.md is what scripts/make-api-reference makes of the code, and has every public name."""

from __future__ import annotations

import re
import runpy

from project import ROOT

import headrace

SCRIPT = ROOT / "scripts" / "make-api-reference"
PAGE = ROOT / "docs" / "api.md"


def test_the_api_reference_is_up_to_date():
    text = runpy.run_path(str(SCRIPT))["render_reference"]()
    assert PAGE.read_text(encoding="utf-8") == text, "docs/api.md is out of date: run `make api`"


def test_every_public_name_has_a_heading():
    headings = set(re.findall(r"^### (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(headrace.__all__) <= headings


def test_the_reference_does_not_depend_on_the_machine():
    """Addresses of objects differ from run to run."""
    assert not re.search(r" at 0x[0-9a-f]+|<function|<built-in|/root|/home", PAGE.read_text(encoding="utf-8"))

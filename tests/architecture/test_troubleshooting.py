"""docs/troubleshooting.md quotes messages that the code has."""

from __future__ import annotations

import re

import pytest
from project import ROOT, list_modules

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = re.findall(r"^### (.+)\n((?:(?!^#).*\n)*)", TEXT, re.MULTILINE)
QUOTED = re.compile(r"^### `(.+)`$|^Also `(.+)`\.$|^`(.+)`$", re.MULTILINE)
MIN_PIECE = 4  # characters; shorter pieces between two placeholders are punctuation


def list_messages() -> list[str]:
    return [next(filter(None, groups)) for groups in QUOTED.findall(TEXT)]


def test_the_document_quotes_messages():
    assert len(list_messages()) > 25


@pytest.mark.parametrize("message", list_messages())
def test_quoted_messages_are_those_of_the_code(message: str):
    """Every piece between two placeholders stands in one module, as a message in the code has its parts in one place."""
    pieces = [piece for piece in message.split("…") if len(piece.strip()) >= MIN_PIECE]
    assert pieces
    assert any(all(piece in module.text for piece in pieces) for module in list_modules())


@pytest.mark.parametrize(("symptom", "body"), SYMPTOMS, ids=[symptom for symptom, _ in SYMPTOMS])
def test_each_symptom_says_what_to_do(symptom: str, body: str):
    causes = re.findall(r"^- \*\*", body, re.MULTILINE)
    assert len(causes) >= 2, f"'{symptom}' needs a cause and what to do, or several causes with what to do"

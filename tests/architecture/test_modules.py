"""What every module keeps to: a docstring, a length one can read, values that cannot change."""

from __future__ import annotations

import ast

import pytest
from project import Module, modules

MAX_LINES = 400
VALUES = ("model", "plan", "sharing")
SENTENCE = "Every row carries the set of queries it still matters to; every operator works once for all of them."


def test_every_module_states_its_contract():
    assert [module.name for module in modules() if not (ast.get_docstring(module.tree) or "").strip()] == []


def test_no_file_is_too_long_to_read():
    assert [module.name for module in modules() if len(module.text.splitlines()) > MAX_LINES] == []


def test_the_selection_opens_with_the_sentence():
    selection = next(module for module in modules() if module.name == "sharing.selection")
    assert (ast.get_docstring(selection.tree) or "").startswith(SENTENCE)


@pytest.mark.parametrize("package", VALUES)
def test_values_are_frozen_and_slotted(package: str):
    found = [module for module in modules() if module.name.partition(".")[0] == package]
    assert found
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                assert _is_value(node), (
                    f"{module.name}.{node.name} is neither a frozen, slotted dataclass nor an enum, protocol or error"
                )


def _is_value(node: ast.ClassDef) -> bool:
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    if bases & {"Enum", "StrEnum", "Protocol"} or any(base.endswith("Error") for base in bases):
        return True
    return any({"frozen", "slots"} <= _switched_on(decorator) for decorator in node.decorator_list)


def _switched_on(decorator: ast.expr) -> set[str | None]:
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) not in {"dataclass", "dataclasses.dataclass"}:
        return set()
    return {word.arg for word in decorator.keywords if isinstance(word.value, ast.Constant) and word.value.value is True}


def test_the_checks_can_fail():
    loose = ast.parse("@dataclass(slots=True)\nclass A:\n    x: int").body[0]
    tight = ast.parse("@dataclass(frozen=True, slots=True)\nclass A:\n    x: int").body[0]
    assert isinstance(loose, ast.ClassDef)
    assert isinstance(tight, ast.ClassDef)
    assert (_is_value(loose), _is_value(tight)) == (False, True)
    assert Module(next(m.path for m in modules() if m.name == "session")).defines("Session.add")
    assert not Module(next(m.path for m in modules() if m.name == "session")).defines("Session.vanish")

"""The shape of modules: a docstring, a bounded length, unique class names, and immutable values."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest
from project import SENTENCE, list_modules

MAX_LINES = 600
VALUE_PACKAGES = ("model", "plan", "planner")


def test_every_module_has_a_docstring():
    assert [module.name for module in list_modules() if not module.docstring] == []


def test_no_module_exceeds_the_line_limit():
    assert [module.name for module in list_modules() if len(module.text.splitlines()) > MAX_LINES] == []


def test_the_predicate_index_opens_with_the_sentence():
    module = next(module for module in list_modules() if module.name == "planner.predicate_index")
    assert module.docstring.startswith(SENTENCE)


def test_class_names_are_unique():
    modules_by_class: dict[str, list[str]] = defaultdict(list)
    for module in list_modules():
        for node in module.classes:
            modules_by_class[node.name].append(module.name)
    assert {name: modules for name, modules in modules_by_class.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("package", VALUE_PACKAGES)
def test_classes_of_value_packages_are_frozen_and_slotted(package: str):
    modules = [module for module in list_modules() if module.name.partition(".")[0] == package]
    assert modules
    for module in modules:
        for node in module.classes:
            assert _is_value_class(node), (
                f"{module.name}.{node.name} is neither a frozen, slotted dataclass nor an enum, protocol or error"
            )


def _is_value_class(node: ast.ClassDef) -> bool:
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    if bases & {"Enum", "StrEnum", "Protocol"} or any(base.endswith("Error") for base in bases):
        return True
    return any({"frozen", "slots"} <= _true_dataclass_options(decorator) for decorator in node.decorator_list)


def _true_dataclass_options(decorator: ast.expr) -> set[str | None]:
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) not in {"dataclass", "dataclasses.dataclass"}:
        return set()
    return {option.arg for option in decorator.keywords if isinstance(option.value, ast.Constant) and option.value.value is True}


def test_the_checks_detect_violations():
    mutable = ast.parse("@dataclass(slots=True)\nclass A:\n    x: int").body[0]
    frozen = ast.parse("@dataclass(frozen=True, slots=True)\nclass A:\n    x: int").body[0]
    assert isinstance(mutable, ast.ClassDef)
    assert isinstance(frozen, ast.ClassDef)
    assert (_is_value_class(mutable), _is_value_class(frozen)) == (False, True)
    session = next(module for module in list_modules() if module.name == "session")
    assert session.defines("Session.add")
    assert not session.defines("Session.vanish")

"""Import fences: the tables of ARCHITECTURE.md against the imports of every module, in both directions."""

from __future__ import annotations

import ast
import sys
from functools import cache

from project import ROOT, Document, Module, list_modules

ARCHITECTURE = Document(ROOT / "ARCHITECTURE.md")
FENCES = ARCHITECTURE.read_table("Import fences")
LIBRARIES = ARCHITECTURE.read_table("Libraries")
LOADERS = {
    "backends.spark.worker_probe", "cli", "connectors.kafka", "connectors.message_files", "connectors.sinks.destination",
    "headrace", "runtime.backend",
}  # fmt: skip
"""Modules that import by name: a command, a public name, a back-end, a library that few need, what a worker may not have."""


def is_within(name: str, area: str) -> bool:
    return name == area or name.startswith(f"{area}.")


@cache
def find_row(name: str) -> str:
    """Return the most specific row of the table that a module belongs to; "headrace" for names of the package itself."""
    return max((row for row in FENCES if is_within(name, row)), key=len, default="headrace")


def list_crossings(module: Module) -> set[str]:
    """Return the names that a module imports from other rows of the table."""
    names = {name.removeprefix("headrace.") for name in module.imports if is_within(name, "headrace")}
    return {name for name in names if find_row(name) != find_row(module.name)}


def list_libraries(module: Module) -> set[str]:
    roots = {name.partition(".")[0] for name in module.imports}
    return {root for root in roots if root not in sys.stdlib_module_names and root != "headrace"}


def test_every_module_has_a_row_and_every_row_has_a_module():
    assert {find_row(module.name) for module in list_modules()} == set(FENCES)
    assert [m.name for m in list_modules() if find_row(m.name) == "headrace"] == ["headrace"]


def test_modules_import_only_what_their_row_allows():
    violations = [
        f"{module.name} imports {name}; '{find_row(module.name)}' may import: {', '.join(FENCES[find_row(module.name)]) or '–'}"
        for module in list_modules()
        for name in sorted(list_crossings(module))
        if not any(is_within(name, area) for area in FENCES[find_row(module.name)])
    ]
    assert violations == []


def test_every_allowed_import_is_used():
    imported: dict[str, set[str]] = {row: set() for row in FENCES}
    for module in list_modules():
        imported[find_row(module.name)] |= list_crossings(module)
    unused = [
        f"{row}: {area}" for row, areas in FENCES.items() for area in areas if not any(is_within(n, area) for n in imported[row])
    ]
    assert unused == []


def test_libraries_are_imported_exactly_where_the_table_lists_them():
    users: dict[str, set[str]] = {library: set() for library in LIBRARIES}
    for module in list_modules():
        for library in list_libraries(module):
            assert library in LIBRARIES, f"{module.name} imports {library}, which has no row"
            users[library].add(find_row(module.name))
    for library, rows in LIBRARIES.items():
        assert users[library] == set(rows) or (rows == ["anywhere"] and users[library]), library


def test_the_reference_imports_nothing_of_the_code_under_test():
    assert set(FENCES["backends.reference"]) == {"errors", "model", "plan"}


def test_the_kernels_import_nothing_of_headrace():
    assert FENCES["engine.kernels"] == []


def test_only_the_loaders_import_modules_by_name():
    for module in list_modules():
        if "import_module" not in module.text and "__import__" not in module.text:
            continue
        attributes = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
        names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
        assert "import_module" not in attributes or module.name in LOADERS, module.name
        assert "__import__" not in names, module.name

"""Who may import whom: the tables of ARCHITECTURE.md, held against every import of every module, in both directions."""

from __future__ import annotations

import ast
import sys

from project import ROOT, Document, Module, modules

ARCHITECTURE = Document(ROOT / "ARCHITECTURE.md")
FENCES = ARCHITECTURE.table("Import fences")
LIBRARIES = ARCHITECTURE.table("Libraries")
LOADERS = {"cli", "headrace", "runtime.backends"}  # the places that import by name: a command, a public name, a back-end


def within(name: str, area: str) -> bool:
    return name == area or name.startswith(f"{area}.")


def row_of(name: str) -> str:
    """The most specific row a name belongs to; the package itself for whatever it re-exports."""
    return max((row for row in FENCES if within(name, row)), key=len, default="headrace")


def crossings(module: Module) -> set[str]:
    """What a module imports of headrace, outside its own row."""
    found = {name.removeprefix("headrace.") for name in module.imports() if within(name, "headrace")}
    return {name for name in found if row_of(name) != row_of(module.name)}


def libraries(module: Module) -> set[str]:
    roots = {name.partition(".")[0] for name in module.imports()}
    return {root for root in roots if root not in sys.stdlib_module_names and root != "headrace"}


def test_every_module_has_a_row_and_every_row_a_module():
    rows = {row_of(module.name) for module in modules()}
    assert rows == set(FENCES)
    assert all(module.name == "headrace" or row_of(module.name) != "headrace" for module in modules())


def test_nothing_is_imported_across_a_fence():
    wrong = [
        f"{module.name} imports {name}, but '{row_of(module.name)}' may import only: {', '.join(FENCES[row_of(module.name)])}"
        for module in modules()
        for name in sorted(crossings(module))
        if not any(within(name, area) for area in FENCES[row_of(module.name)])
    ]
    assert wrong == []


def test_the_table_allows_nothing_that_is_not_used():
    used: dict[str, set[str]] = {row: set() for row in FENCES}
    for module in modules():
        used[row_of(module.name)] |= crossings(module)
    idle = [f"{row}: {area}" for row, areas in FENCES.items() for area in areas if not any(within(n, area) for n in used[row])]
    assert idle == []


def test_libraries_are_imported_only_where_the_table_says():
    users: dict[str, set[str]] = {library: set() for library in LIBRARIES}
    for module in modules():
        for library in libraries(module):
            assert library in LIBRARIES, f"{module.name} imports {library}, which has no row"
            users[library].add(row_of(module.name))
    for library, places in LIBRARIES.items():
        assert users[library] == set(places) or (places == ["anywhere"] and users[library]), library


def test_the_oracle_imports_nothing_of_what_it_judges():
    assert set(FENCES["backends.reference"]) == {"errors", "model", "plan"}


def test_modules_are_loaded_by_name_in_three_places_only():
    for module in modules():
        called = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
        assert "import_module" not in called or module.name in LOADERS, module.name
        assert not any(isinstance(node, ast.Name) and node.id == "__import__" for node in ast.walk(module.tree)), module.name

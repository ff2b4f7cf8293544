"""The project as data for the architecture tests: modules as syntax trees, documents as blocks, code spans and tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headrace"
SENTENCE = "Every row carries the set of queries it still matters to; every operator works once for all of them."
"""README, ARCHITECTURE and the module of the predicate index open with it."""
_FENCED_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Module:
    """A module of the package; `name` is dotted, without `headrace.`; the package itself is "headrace"."""

    path: Path

    @property
    def name(self) -> str:
        parts = self.path.relative_to(PACKAGE).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "headrace"

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def docstring(self) -> str:
        return (ast.get_docstring(self.tree) or "").strip()

    @cached_property
    def statements(self) -> tuple[ast.stmt, ...]:
        """All statements, at any depth."""
        return tuple(_iter_statements(self.tree.body))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All class definitions, at any depth."""
        return [node for node in self.statements if isinstance(node, ast.ClassDef)]

    @cached_property
    def imports(self) -> set[str]:
        """All imported names, at any depth; `from a import b` is a.b."""
        names: set[str] = set()
        for node in self.statements:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: relative import in line {node.lineno}"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        return names

    def defines(self, dotted_name: str) -> bool:
        """Return whether the module defines a function, class, method, field or constant of that name."""
        body: list[ast.stmt] = self.tree.body
        for name in dotted_name.split("."):
            definition = next((node for node in body if name in _defined_names(node)), None)
            if definition is None:
                return False
            body = getattr(definition, "body", [])
        return True


def _iter_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            for name in ("body", "orelse", "finalbody"):
                yield from _iter_statements(getattr(part, name, []))


def _defined_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


@dataclass(frozen=True)
class Document:
    """A Markdown file."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return _FENCED_BLOCK.sub("", self.text)

    def list_blocks(self, language: str) -> list[tuple[int, str]]:
        """Return the fenced blocks of a language, each with the number of its first line."""
        matches = (match for match in _FENCED_BLOCK.finditer(self.text) if match[1] == language)
        return [(self.text.count("\n", 0, match.start()) + 2, match[2]) for match in matches]

    def list_code_spans(self) -> set[str]:
        """Return the texts in single back-quotes."""
        return set(re.findall(r"`([^`\n]+)`", self.prose))

    def list_local_links(self) -> set[str]:
        """Return the targets of links into this repository."""
        targets = re.findall(r"\]\(([^)\s]+)\)", self.prose)
        return {target for target in targets if not re.match(r"[a-z]+:", target)}

    def list_anchors(self) -> set[str]:
        """Return the anchors that GitHub derives from the headings."""
        titles = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def get_section(self, heading: str) -> str:
        """Return the text between a heading of the second level and the next one."""
        return self.text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]

    def read_table(self, heading: str) -> dict[str, list[str]]:
        """Return the two-column table of a section: first cell → the comma-separated names of the second ("–" is none)."""
        lines = [line.strip().strip("|").split("|") for line in self.get_section(heading).splitlines() if line.startswith("|")]
        rows: dict[str, list[str]] = {}
        for first, second in lines[2:]:
            key = first.strip().strip("`")
            assert key not in rows, f"{key} has two rows"
            rows[key] = re.findall(r"[\w.]+", second)
        return rows


@cache  # the modules also keep their syntax trees
def list_modules() -> tuple[Module, ...]:
    return tuple(load_module(path) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def load_module(path: Path) -> Module:
    return Module(path)


@cache
def list_documents() -> tuple[Document, ...]:
    return tuple(Document(path) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]))

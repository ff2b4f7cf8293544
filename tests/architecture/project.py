"""What the architecture tests look at: modules as syntax trees, documents as blocks, spans and tables."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headrace"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Module:
    """A module of the package; `name` is dotted and without `headrace.` (which itself is "headrace")."""

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

    def imports(self) -> set[str]:
        """Every absolute name imported, at whatever depth; `from a import b` is a.b."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: relative import in line {node.lineno}"
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return found

    def defines(self, dotted: str) -> bool:
        """Tell whether there is a function, class, method or variable of that name."""
        body: list[ast.stmt] = self.tree.body
        for name in dotted.split("."):
            found = next((node for node in body if name in _names(node)), None)
            if found is None:
                return False
            body = getattr(found, "body", [])
        return True


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
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

    def blocks(self, language: str) -> list[tuple[int, str]]:
        """The fenced blocks of a language, each with the line its content begins at."""
        return [(self.text.count("\n", 0, m.start()) + 2, m[2]) for m in _FENCED.finditer(self.text) if m[1] == language]

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return _FENCED.sub("", self.text)

    def spans(self) -> set[str]:
        """Everything in single back-quotes."""
        return set(re.findall(r"`([^`\n]+)`", self.prose))

    def links(self) -> set[str]:
        """The targets of links that stay in the repository."""
        found = re.findall(r"\]\(([^)\s]+)\)", self.prose)
        return {target for target in found if not re.match(r"[a-z]+:", target)}

    def anchors(self) -> set[str]:
        """The headings, as GitHub makes links of them."""
        titles = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def table(self, heading: str) -> dict[str, list[str]]:
        """The two-column table below a heading: first cell → the comma-separated names of the second ("–" is none)."""
        part = self.text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
        lines = [line.strip().strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
        found: dict[str, list[str]] = {}
        for first, second in lines[2:]:
            key = first.strip().strip("`")
            assert key not in found, f"{key} has two rows"
            found[key] = re.findall(r"[\w.]+", second)
        return found


def modules() -> list[Module]:
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def documents() -> list[Document]:
    return [Document(path) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]

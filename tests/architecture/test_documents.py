"""Documents that cannot drift: what they name exists, what they show runs.

Python blocks run in order, one namespace a document, in an empty directory; a session that asks for Spark gets the same
stages in this process. TOML blocks are session files, SQL blocks queries over the example; both must bind. Words of shell
blocks must name commands and files.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from project import PACKAGE, ROOT, Document, Module, documents

import headrace.session
from headrace.cli import COMMANDS
from headrace.cli.explain import plan_session_file
from headrace.cli.session_file import SessionFile
from headrace.runtime.backend import load_backend
from headrace.sql import Catalog, bind_query

SENTENCE = "Every row carries the set of queries it still matters to; every operator works once for all of them."
BASES = (ROOT, PACKAGE, ROOT / "docs", ROOT / "tests")
NAMED = re.compile(r"([\w./-]+\.(?:py|md|toml))(?::([\w.]+))?$|([\w.-]+/(?:[\w.-]+/)*)$")
STREAMS = "data"  # of the examples: the files that TOML blocks read

every_document = pytest.mark.parametrize("document", documents(), ids=lambda document: document.name)


def test_the_documents_are_there():
    names = {document.name for document in documents()}
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "GLOSSARY.md"} <= names
    assert {f"docs/{name}.md" for name in ("life-of-a-query", "life-of-a-row", "sql", "session-file", "checkpoint")} <= names


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
def test_they_open_with_the_sentence(name: str):
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line.strip()]
    assert lines[1].strip("*") == SENTENCE


def test_the_readme_comes_to_the_point():
    before, fence, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("```")
    assert fence
    assert before.count("\n") + 1 <= 15
    assert len(re.findall(r"[.!?](?=[\s*]|$)", before)) <= 3


@every_document
def test_links_lead_somewhere(document: Document):
    for target in sorted(document.links()):
        file, _, anchor = target.partition("#")
        path = (document.path.parent / file).resolve() if file else document.path
        assert path.exists(), f"{document.name} links to '{target}'"
        assert not anchor or anchor in Document(path).anchors(), f"{document.name} links to '{target}', which has no such heading"


@every_document
def test_files_and_functions_named_exist(document: Document):
    for span in sorted(document.spans()):
        match = NAMED.match(span)
        if match is None:
            continue
        name, inside = match[1] or match[3], match[2]
        found = next((base / name for base in BASES if (base / name).exists()), None)
        assert found is not None, f"{document.name} names '{span}', which is not there"
        assert not inside or Module(found).defines(inside), f"{document.name} names '{span}', which {name} does not define"


@every_document
def test_python_runs(document: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def without_spark(name: str, *arguments: object, **options: object) -> object:
        return load_backend("local" if name == "spark" else name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(headrace.session, "load_backend", without_spark)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "document"}
    for line, block in document.blocks("python"):
        exec(compile("\n" * (line - 1) + block, document.path, "exec"), names)


@every_document
def test_toml_is_a_session_file(document: Document, tmp_path: Path):
    (tmp_path / STREAMS).symlink_to(ROOT / "examples" / STREAMS)
    for _, block in document.blocks("toml"):
        (tmp_path / "session.toml").write_text(block, encoding="utf-8")
        file = SessionFile.load(tmp_path / "session.toml")
        for stream in file.streams:
            if stream.kind == "files":
                pattern = Path(stream.options["path"]).relative_to(tmp_path)
                assert list(tmp_path.glob(str(pattern))), f"{document.name}: '{pattern}' matches no file"
        assert plan_session_file(file).operators


@every_document
def test_sql_binds(document: Document):
    file = SessionFile.load(ROOT / "examples" / "purchases.toml")
    catalog = Catalog.of(stream.to_stream() for stream in file.streams)
    for _, block in document.blocks("sql"):
        for query in block.strip().split("\n\n"):
            assert bind_query(query, catalog).schema.names


@every_document
def test_shell_commands_exist(document: Document):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for _, block in document.blocks("sh"):
        for words in (shlex.split(line, comments=True) for line in block.splitlines()):
            if "make" in words:
                assert set(_plain(words[words.index("make") + 1 :])) <= targets, words
            if "headrace" in words:
                assert words[words.index("headrace") + 1] in COMMANDS, words
            for word in words:
                assert not re.search(r"\.(toml|py|md)$", word) or (ROOT / word).exists(), (
                    f"{document.name}: '{word}' is not there"
                )


def _plain(words: list[str]) -> list[str]:
    return [word for word in words if "=" not in word]


def test_the_readme_shows_the_example():
    """The session file of the README is the beginning of the example, so that the command beside it gives what it says."""
    example = (ROOT / "examples" / "purchases.toml").read_text(encoding="utf-8")
    blocks = Document(ROOT / "README.md").blocks("toml")
    assert blocks
    for _, block in blocks:
        for part in block.strip().split("\n\n"):
            assert part in example, part

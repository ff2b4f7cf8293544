"""Documents that cannot drift: every file, symbol and command they name exists, every example runs.

Python blocks run in order, in one namespace per document and in an empty directory; a session that requests Spark gets the
same stages in this process. TOML blocks are session files and SQL blocks are queries over the example; both must bind. Words
of shell blocks must name existing commands and files. `test_tutorial.py` runs the blocks of the tutorial, as one story, and
`test_how_tos.py` those of how-tos that need servers or files.
"""

from __future__ import annotations

import logging
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from project import PACKAGE, ROOT, SENTENCE, Document, list_documents, load_module

import headrace.session
from headrace.cli import COMMANDS
from headrace.cli.explain import plan_session_file
from headrace.cli.session_file import SessionFile
from headrace.runtime.backend import BackendStart
from headrace.sql import Catalog, bind_query

BASE_FOLDERS = (ROOT, PACKAGE, ROOT / "docs", ROOT / "tests")
FILE_OR_FOLDER = re.compile(r"([\w./-]+\.(?:py|md|toml))(?::([\w.]+))?$|([\w.-]+/(?:[\w.-]+/)*)$")
SAVED_AS = re.compile(r"[Ss]ave this as `([\w.-]+)`:$", re.MULTILINE)  # a file of the reader
PLACEHOLDERS = {"SESSION.toml"}  # arguments in the usage of commands
EXAMPLE_DATA = "data"  # the folder of the examples that TOML blocks read
MAX_PATH_FILES = 12
MAX_PICTURE_BYTES = 300_000
STORIES = {"docs/tutorial.md"}  # documents whose blocks depend on each other; they have tests of their own

every_document = pytest.mark.parametrize("document", list_documents(), ids=lambda document: document.name)
every_reference = pytest.mark.parametrize(
    "document", [document for document in list_documents() if document.name not in STORIES], ids=lambda document: document.name
)


def test_the_main_documents_exist():
    names = {document.name for document in list_documents()}
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "GLOSSARY.md"} <= names
    assert {f"docs/{name}.md" for name in ("life-of-a-query", "life-of-a-row", "sql", "session-file", "checkpoint")} <= names
    assert {f"docs/{name}.md" for name in ("tutorial", "configuration", "troubleshooting", "api", "service", "shell")} <= names


def test_the_readme_links_to_all_documents():
    links = {(ROOT / link.partition("#")[0]).resolve() for link in Document(ROOT / "README.md").list_local_links()}
    documents = {document.path for document in list_documents() if "decisions" not in document.path.parts}
    assert documents - {ROOT / "README.md"} <= links


def test_pictures_of_the_page_are_small():
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    assert all(picture.stat().st_size < MAX_PICTURE_BYTES for picture in pictures)


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
def test_readme_and_architecture_open_with_the_sentence(name: str):
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line.strip()]
    assert lines[1].strip("*") == SENTENCE


def test_the_readme_shows_code_within_15_lines_and_3_sentences():
    introduction, fence, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("```")
    assert fence
    assert introduction.count("\n") + 1 <= 15
    assert len(re.findall(r"[.!?](?=[\s*]|$)", introduction)) <= 3


@pytest.mark.parametrize("heading", ["Files of a row", "Files of a query"])
def test_the_path_of_a_row_and_of_a_query_have_at_most_a_dozen_files(heading: str):
    section = Document(ROOT / "ARCHITECTURE.md").get_section(heading)
    files = re.findall(r"^\d+\. `([\w/]+\.py)", section, re.MULTILINE)
    assert 0 < len(files) <= MAX_PATH_FILES
    assert len(files) == len(set(files))


@every_document
def test_links_have_a_target(document: Document):
    for target in sorted(document.list_local_links()):
        file, _, anchor = target.partition("#")
        path = (document.path.parent / file).resolve() if file else document.path
        assert path.exists(), f"{document.name} links to '{target}', which does not exist"
        assert not anchor or anchor in Document(path).list_anchors(), f"{document.name} links to '{target}': no such heading"


@every_reference
def test_named_files_and_symbols_exist(document: Document):
    for span in sorted(document.list_code_spans()):
        match = FILE_OR_FOLDER.match(span)
        if match is None or span in PLACEHOLDERS:
            continue
        name, symbol = match[1] or match[3], match[2]
        path = next((folder / name for folder in BASE_FOLDERS if (folder / name).exists()), None)
        if name in SAVED_AS.findall(document.text):
            continue
        assert path is not None, f"{document.name} names '{span}', which does not exist"
        assert not symbol or load_module(path).defines(symbol), f"{document.name} names '{span}', but {name} does not define it"


@every_reference
def test_python_blocks_run(document: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def start_without_spark(name: str, *arguments: Any) -> BackendStart:
        return BackendStart("local" if name == "spark" else name, *arguments)

    monkeypatch.setattr(headrace.session, "BackendStart", start_without_spark)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger(), "handlers", list(logging.getLogger().handlers))  # a block may configure logs
    monkeypatch.setattr(logging.getLogger("headrace"), "level", logging.getLogger("headrace").level)
    namespace: dict[str, object] = {"__name__": "document"}
    for line, block in document.list_blocks("python"):
        exec(compile("\n" * (line - 1) + block, document.path, "exec"), namespace)


@every_reference
def test_toml_blocks_are_session_files(document: Document, tmp_path: Path):
    (tmp_path / EXAMPLE_DATA).symlink_to(ROOT / "examples" / EXAMPLE_DATA)
    for _, block in document.list_blocks("toml"):
        (tmp_path / "session.toml").write_text(block, encoding="utf-8")
        file = SessionFile.load(tmp_path / "session.toml")
        for stream in file.streams:
            if stream.kind == "files":
                pattern = Path(stream.options["path"]).relative_to(tmp_path)
                assert list(tmp_path.glob(str(pattern))), f"{document.name}: '{pattern}' matches no file"
        assert plan_session_file(file).operators


@every_reference
def test_sql_blocks_bind(document: Document):
    file = SessionFile.load(ROOT / "examples" / "purchases.toml")
    catalog = Catalog.of(stream.to_stream() for stream in file.streams)
    for _, block in document.list_blocks("sql"):
        for query in block.strip().split("\n\n"):
            assert bind_query(query, catalog).schema.names


@every_reference
def test_shell_blocks_name_existing_commands_and_files(document: Document):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for _, block in document.list_blocks("sh"):
        for words in (shlex.split(line, comments=True) for line in block.splitlines()):
            if "make" in words:
                assert set(_drop_assignments(words[words.index("make") + 1 :])) <= targets, words
            if "headrace" in words:
                command = words[words.index("headrace") + 1]
                assert command in COMMANDS or command in {"--help", "--version"}, words
            for word in words:
                is_file = re.search(r"\.(toml|py|md)$", word)
                is_known = not is_file or word in SAVED_AS.findall(document.text) or (ROOT / word).exists()
                assert is_known, f"{document.name}: '{word}' does not exist"


def _drop_assignments(words: list[str]) -> list[str]:
    return [word for word in words if "=" not in word]


def test_the_session_file_of_the_readme_is_part_of_the_example():
    """The command beside the session file in the README runs the example, so both must agree."""
    example = (ROOT / "examples" / "purchases.toml").read_text(encoding="utf-8")
    blocks = Document(ROOT / "README.md").list_blocks("toml")
    assert blocks
    for _, block in blocks:
        for part in block.strip().split("\n\n"):
            assert part in example, part

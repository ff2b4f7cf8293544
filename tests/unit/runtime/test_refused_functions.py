"""A session that takes no functions: registering is refused, and a checkpoint with functions before any of its code runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli import run
from headrace.cli.session_file import SessionFile
from headrace.cli.terminal import BackendName
from headrace.errors import CheckpointError, SessionError, SqlError
from headrace.storage import container
from headrace.storage.checkpoint import read_identity
from headrace.storage.posix import PosixStore
from headrace.storage.udf_store import PYTHON_VERSION, StoredFunction, get_udf_key

SCHEMA = "k INT, time TIMESTAMP"


class Payload:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def write_checkpoint(folder: Path, *, dropped: bool = False) -> Path:
    """Write a checkpoint whose functions are `twice` and `thrice`; the code of `twice` creates the file `ran` when loaded."""
    checkpoint = folder / "checkpoint"
    with hr.Session(checkpoint, backend="local", partitions=1) as session:
        source = hr.MemorySource(SCHEMA)
        session.create_stream("s", source, time="time")
        for name in ("twice", "thrice"):
            session.register_function(hr.function("INT", arguments="INT", name=name)(lambda k: k))
        session.add("SELECT twice(k) AS k FROM s", name="doubled")
        session.advance()
        if dropped:
            session.remove("doubled")
            session.advance()
            session.drop_function("twice")
            session.drop_function("thrice")
            source.append([{"k": 1, "time": "2026-01-01T00:00:00Z"}])
            session.advance()
        tag = next(tag for tag in session._coordinator.state.udfs.all_tags if tag.startswith("twice@"))
    content = StoredFunction(PYTHON_VERSION, pickle.dumps(Payload(folder / "ran")))
    container.write(PosixStore(checkpoint, read_identity(PosixStore(checkpoint))), get_udf_key(tag), content)
    return checkpoint


def test_a_function_is_refused():
    with hr.Session(backend="local", functions=False) as session:
        with pytest.raises(SessionError, match="function 'twice' is refused"):
            session.register_function("twice", lambda k: k, "INT")
        session.create_stream("s", hr.MemorySource(SCHEMA), time="time")
        with pytest.raises(SqlError, match="twice"):
            session.add("SELECT twice(k) AS k FROM s")


@pytest.mark.parametrize("dropped", [False, True])
def test_a_checkpoint_with_functions_is_refused_before_its_code_runs(tmp_path: Path, dropped: bool):
    checkpoint = write_checkpoint(tmp_path, dropped=dropped)
    with pytest.raises(CheckpointError, match="has functions, and this session takes none") as refused:
        hr.Session(checkpoint, backend="local", functions=False)
    assert refused.value.detail == "functions: 'twice', 'thrice'"
    assert not (tmp_path / "ran").exists()
    with hr.Session(checkpoint, backend="local") as session:  # the refusal released and changed nothing
        source = hr.MemorySource(SCHEMA)
        session.create_stream("s", source, time="time")
        source.append([{"k": 2, "time": "2026-01-01T00:00:01Z"}])
        if not dropped:
            session.advance()
            assert (tmp_path / "ran").exists(), "the payload has no effect, so that the test shows nothing"


def test_functions_of_a_logged_batch_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with hr.Session(tmp_path / "checkpoint", backend="local", partitions=1) as session:
        session.create_stream("s", hr.MemorySource(SCHEMA), time="time")
        session.register_function("twice", lambda k: k, "INT", arguments="INT")
        session.add("SELECT twice(k) AS k FROM s", name="doubled")

        def crash(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(session._coordinator, "_run_and_commit", crash)
        with pytest.raises(KeyboardInterrupt):
            session.advance()
    with pytest.raises(CheckpointError, match="has functions"):
        hr.Session(tmp_path / "checkpoint", backend="local", functions=False)


def test_a_checkpoint_without_functions_opens(tmp_path: Path):
    for _ in range(2):
        with hr.Session(tmp_path / "checkpoint", backend="local", functions=False) as session:
            session.create_stream("s", hr.MemorySource(SCHEMA), time="time")
            session.advance()


def test_a_session_file_can_refuse_functions(tmp_path: Path):
    checkpoint = write_checkpoint(tmp_path)
    text = f'checkpoint = "checkpoint"\nfunctions = false\n[streams.s]\npath = "rows.csv"\nschema = "{SCHEMA}"\ntime = "time"\n'
    (tmp_path / "s.toml").write_text(f'{text}[queries.q]\nsql = "SELECT k FROM s"\n')
    file = SessionFile.load(tmp_path / "s.toml")
    assert (file.functions, file.checkpoint) == (False, str(checkpoint))
    with pytest.raises(CheckpointError, match="has functions"):
        run.command(tmp_path / "s.toml", once=True, backend=BackendName.local)

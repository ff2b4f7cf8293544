"""The Flink environment is installed completely or not at all, with clear errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.bench.systems import flink as module
from headrace.bench.systems.flink import FLINK_VERSION, ensure_flink_environment
from headrace.errors import HeadraceError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "headrace"


def create_environment(folder: Path) -> None:
    home = folder / "lib" / "python3.11" / "site-packages" / "pyflink"
    for name in (
        "bin/python",
        "lib/flink-dist-9.jar",
        "opt/flink-python-9.jar",
        "opt/flink-sql-client-9.jar",
        "conf/config.yaml",
    ):
        path = folder / name if name.startswith("bin/") else home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("env:\n  java:\n    opts:\n      all: --add-exports=a/b=c --add-opens=d/e=f\n")


def test_an_existing_environment_is_used(cache):
    create_environment(cache / f"flink-{FLINK_VERSION}")
    environment = ensure_flink_environment()
    assert [jar.name for jar in environment.list_jars()] == ["flink-dist-9.jar", "flink-python-9.jar"]
    assert environment.read_java_options() == ["--add-exports=a/b=c", "--add-opens=d/e=f"]
    assert environment.python == cache / f"flink-{FLINK_VERSION}" / "bin" / "python"


def test_an_environment_is_installed_in_a_temporary_folder_and_moved(cache, monkeypatch):
    commands = []

    def run(command):
        commands.append(command)
        if "venv" in command:
            create_environment(Path(command[-1]))
        assert not (cache / f"flink-{FLINK_VERSION}").exists()

    monkeypatch.setattr(module, "_run_install_command", run)
    assert ensure_flink_environment().home.is_relative_to(cache / f"flink-{FLINK_VERSION}")
    assert commands[1][-1] == f"apache-flink=={FLINK_VERSION}"
    assert [path.name for path in cache.iterdir()] == [f"flink-{FLINK_VERSION}"]


def test_a_failed_installation_raises_and_leaves_no_files(cache, monkeypatch):
    failing_command = [sys.executable, "-c", "import sys; sys.exit('no such package')"]
    run = module._run_install_command
    monkeypatch.setattr(module, "_run_install_command", lambda command: run(failing_command))
    with pytest.raises(HeadraceError, match=r"installing Apache Flink .* failed\ndetail: no such package\nhint: "):
        ensure_flink_environment()
    assert list(cache.iterdir()) == []


def test_an_unsupported_python_is_refused(cache, monkeypatch):
    monkeypatch.setattr(module, "_SUPPORTED_PYTHONS", ("1.0",))
    with pytest.raises(HeadraceError, match="has no package for Python"):
        ensure_flink_environment()


def test_a_broken_environment_raises_with_a_hint(cache):
    (cache / f"flink-{FLINK_VERSION}").mkdir(parents=True)
    with pytest.raises(HeadraceError, match="is not a Flink environment\nhint: remove the folder"):
        ensure_flink_environment()

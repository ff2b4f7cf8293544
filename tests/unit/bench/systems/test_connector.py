"""JVM connectors are compiled on demand, once per version of their sources, with clear errors."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from headrace.bench.systems import jvm_connector
from headrace.bench.systems.jvm_connector import build_connector, find_java_compiler
from headrace.errors import HeadraceError

FACTORY = {"some.Factory": "some.Tables"}
COMPILER = """#!/bin/sh
echo "$@" >> "{log}"
while [ "$1" != "-d" ]; do shift; done
mkdir -p "$2/some" && printf 'code' > "$2/some/Tables.class"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a machine with an empty cache and no Java."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path


def install_compiler(machine: Path, script: str) -> Path:
    javac = machine / "java" / "bin" / "javac"
    javac.parent.mkdir(parents=True)
    javac.write_text(script.format(log=machine / "log"))
    javac.chmod(0o755)
    return javac


def test_a_jar_is_downloaded_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.setattr(jvm_connector, "_MAVEN", f"{repository.as_uri()}/")
    with pytest.raises(HeadraceError, match="cannot be downloaded"):
        jvm_connector.ensure_jar("a.jar")
    (repository / "a.jar").write_bytes(b"content")
    (repository / "a.jar.sha1").write_text("0" * 40)
    with pytest.raises(HeadraceError, match="arrived damaged"):
        jvm_connector.ensure_jar("a.jar")
    (repository / "a.jar.sha1").write_text(hashlib.sha1(b"content").hexdigest())
    assert jvm_connector.ensure_jar("a.jar").read_bytes() == b"content"
    (repository / "a.jar").unlink()
    assert jvm_connector.ensure_jar("a.jar").read_bytes() == b"content"


def test_a_missing_compiler_raises_with_an_install_hint(machine):
    assert find_java_compiler() is None
    with pytest.raises(HeadraceError, match=r"no Java compiler(.|\n)*hint: install a JDK ≥ 17"):
        build_connector("flink", "9.9", [], FACTORY)


@pytest.mark.parametrize("engine", ["flink", "spark"])
def test_a_connector_is_compiled_once(machine, engine):
    install_compiler(machine, COMPILER)
    jar = build_connector(engine, "9.9", [Path("engine.jar")], FACTORY)
    assert build_connector(engine, "9.9", [Path("engine.jar")], FACTORY) == jar
    calls = (machine / "log").read_text().splitlines()
    assert len(calls) == 1
    assert "-cp engine.jar" in calls[0]
    assert {Path(name).name for name in calls[0].split()} >= {"DriverClient.java", "ArrowBlock.java", "DriverSource.java"}
    with zipfile.ZipFile(jar) as packed:
        assert packed.read("META-INF/services/some.Factory") == b"some.Tables\n"
        assert packed.read("some/Tables.class") == b"code"


def test_each_version_has_its_own_connector(machine):
    install_compiler(machine, COMPILER)
    assert build_connector("flink", "9.9", [], FACTORY) != build_connector("flink", "9.10", [], FACTORY)


def test_compiler_errors_are_reported(machine):
    install_compiler(machine, "#!/bin/sh\necho 'Tables.java:7: error' >&2\nexit 1\n")
    with pytest.raises(HeadraceError, match=r"compiling the connector of this engine failed\ndetail: Tables\.java:7: error"):
        build_connector("flink", "9.9", [], FACTORY)
    assert not list((machine / "cache" / "headrace").iterdir())

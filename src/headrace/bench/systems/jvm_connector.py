"""Compile the Java connectors of the JVM engines, once for each engine; their sources are in the folder `java`.

Rows must not pass through Python on their way into a measured engine, and the engines' own socket sources read lines of text,
which costs both sides more than the query itself. Each engine therefore has a small native source and sink. Compiled connectors
and environments of other engines are in the cache folder of this machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.storage.posix import replace_file


def get_cache_folder() -> Path:
    """Return the cache folder, created if it does not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "headrace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_MAVEN = "https://repo1.maven.org/maven2/"
_DOWNLOAD_SECONDS = 120.0


def ensure_jar(path: str) -> Path:
    """Return a jar of Maven Central by its path there; download it if it is not in the cache. Raise HeadraceError on failure."""
    jar = get_cache_folder() / path.rpartition("/")[2]
    if jar.exists():
        return jar
    try:
        with urllib.request.urlopen(f"{_MAVEN}{path}", timeout=_DOWNLOAD_SECONDS) as answer:  # noqa: S310  https
            content = answer.read()
        with urllib.request.urlopen(f"{_MAVEN}{path}.sha1", timeout=_DOWNLOAD_SECONDS) as answer:  # noqa: S310  https
            expected = answer.read().decode().split()[0]
    except OSError as error:
        raise HeadraceError(f"'{_MAVEN}{path}' cannot be downloaded", detail=str(error), hint=f"place it at {jar}") from error
    if hashlib.sha1(content).hexdigest() != expected:  # noqa: S324  what Maven publishes
        raise HeadraceError(f"'{_MAVEN}{path}' arrived damaged", hint="run the command again")
    replace_file(jar, content)
    return jar


_JAVA_SOURCES = Path(__file__).parent / "java"
_JAVA_RELEASE = "17"


def build_connector(engine: str, version: str, classpath: Sequence[Path], services: Mapping[str, str]) -> Path:
    """Return the jar of an engine's connector; compile it against the engine's jars if it is not in the cache.

    `services` maps each service interface to its implementation. Raise HeadraceError without a Java compiler.
    """
    sources = [*sorted(_JAVA_SOURCES.glob("*.java")), *sorted((_JAVA_SOURCES / engine).glob("*.java"))]
    fingerprint = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources) + repr(sorted(services.items())).encode())
    jar = get_cache_folder() / f"{engine}-{version}-connector-{fingerprint.hexdigest()[:12]}.jar"
    if not jar.exists():
        with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
            _compile_sources(sources, classpath, Path(scratch) / "classes")
            _pack_jar(Path(scratch) / "classes", services, Path(scratch) / "connector.jar")
            (Path(scratch) / "connector.jar").replace(jar)
    return jar


def find_java_compiler() -> str | None:
    """Return the path of the Java compiler; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("javac", path=f"{home}/bin") if home else shutil.which("javac")


def _compile_sources(sources: Sequence[Path], classpath: Sequence[Path], classes: Path) -> None:
    javac = find_java_compiler()
    if javac is None:
        raise HeadraceError(
            "no Java compiler found; the connector of this engine needs one",
            hint="install a JDK ≥ 17 ('apt-get install openjdk-17-jdk-headless'), or set JAVA_HOME to one",
        )
    command = [javac, "-nowarn", "--release", _JAVA_RELEASE, "-d", str(classes), "-cp", os.pathsep.join(map(str, classpath))]
    completed = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)  # noqa: S603
    if completed.returncode:
        raise HeadraceError("compiling the connector of this engine failed", detail=completed.stderr[-2000:])


def _pack_jar(classes: Path, services: Mapping[str, str], jar: Path) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(classes.rglob("*.class")):
            file.write(path, path.relative_to(classes))
        for interface, name in services.items():
            file.writestr(f"META-INF/services/{interface}", f"{name}\n")

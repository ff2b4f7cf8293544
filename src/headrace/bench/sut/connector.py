"""Connectors for engines that run on the JVM: their sources are beside this module, compiled once for each engine.

A row must not pass through Python on its way into an engine that is measured, and the engines' own socket sources read
lines, which costs both sides more than the query itself. So each gets a small source and sink in its own terms.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.bench.sut.cache import cache_folder
from headrace.errors import HeadraceError

_SOURCES = Path(__file__).parent / "java"
_RELEASE = "17"


def connector(engine: str, version: str, classpath: Sequence[Path], services: Mapping[str, str]) -> Path:
    """Return the jar of an engine's connector, compiled against its jars if that was not done before.

    `services` maps an interface to the class that the engine finds by it. Raises HeadraceError without a Java compiler.
    """
    sources = [*sorted(_SOURCES.glob("*.java")), *sorted((_SOURCES / engine).glob("*.java"))]
    print_of = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources) + repr(sorted(services.items())).encode())
    target = cache_folder() / f"{engine}-{version}-connector-{print_of.hexdigest()[:12]}.jar"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            _compile(sources, classpath, Path(scratch) / "classes")
            _pack(Path(scratch) / "classes", services, Path(scratch) / "connector.jar")
            (Path(scratch) / "connector.jar").replace(target)
    return target


def compiler() -> str | None:
    """Return where the Java compiler is; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("javac", path=f"{home}/bin") if home else shutil.which("javac")


def _compile(sources: Sequence[Path], classpath: Sequence[Path], classes: Path) -> None:
    javac = compiler()
    if javac is None:
        raise HeadraceError(
            "there is no Java compiler, which the connector of this engine needs",
            hint="install a JDK ≥ 17 ('apt-get install openjdk-17-jdk-headless'), or set JAVA_HOME to one",
        )
    command = [javac, "-nowarn", "--release", _RELEASE, "-d", str(classes), "-cp", os.pathsep.join(map(str, classpath))]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise HeadraceError("the connector of this engine cannot be compiled", detail=done.stderr[-2000:])


def _pack(classes: Path, services: Mapping[str, str], jar: Path) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(classes.rglob("*.class")):
            file.write(path, path.relative_to(classes))
        for interface, name in services.items():
            file.writestr(f"META-INF/services/{interface}", f"{name}\n")

"""headrace as a zip, for workers that do not have it: for `spark-submit --py-files`, and as an artifact of Spark Connect."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

from headrace.errors import HeadraceError

_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the same content gives the same zip


def find_own_zip() -> Path | None:
    """Return the zip that headrace was imported from, if it was."""
    place = Path(__file__).parents[1]
    return place if place.is_file() else None


def write_zip(file: Path) -> None:
    """Write all files of the package, and the metadata that tell its version."""
    if file.suffix != ".zip":
        raise HeadraceError(f"file '{file}' does not end in .zip", hint="Spark imports from zip files by their suffix")
    root, version = Path(__file__).parent, metadata.version("headrace")
    if not root.is_dir():
        raise HeadraceError(f"headrace is already in a zip: {root.parent}", hint="copy that file")
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    _add_file(archive, f"headrace/{path.relative_to(root).as_posix()}", path.read_bytes())
            _add_file(archive, f"headrace-{version}.dist-info/METADATA", _describe(version).encode())
    except OSError as error:
        raise HeadraceError(f"cannot write '{file}'", detail=error.strerror or str(error)) from error


def _add_file(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _FIRST_DATE), content, zipfile.ZIP_DEFLATED)


def _describe(version: str) -> str:
    requirements = [f"Requires-Dist: {text}" for text in metadata.requires("headrace") or ()]
    return "\n".join(["Metadata-Version: 2.1", "Name: headrace", f"Version: {version}", *requirements, ""])

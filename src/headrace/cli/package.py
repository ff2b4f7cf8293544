"""`headrace package zip FILE`: write headrace as a zip for `spark-submit --py-files`, for workers that do not have it."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import HeadraceError

app = typer.Typer(no_args_is_help=True, help="Ship headrace to a cluster.")
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the same content gives the same zip


@app.callback()
def _group() -> None:
    """Ship headrace to a cluster."""


@app.command("zip")
def command_zip(file: Annotated[Path, typer.Argument(metavar="FILE", help="The zip to write, such as headrace.zip.")]) -> None:
    """Write headrace as a zip for `spark-submit --py-files FILE`; the libraries that it needs must be on the workers."""
    write_zip(file)
    print(f"wrote {file}: headrace {metadata.version('headrace')}, {file.stat().st_size:,} bytes")


def write_zip(file: Path) -> None:
    """Write all files of the package, and the metadata that tell its version."""
    if file.suffix != ".zip":
        raise HeadraceError(f"file '{file}' does not end in .zip", hint="Spark imports from zip files by their suffix")
    root, version = Path(__file__).parents[1], metadata.version("headrace")
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

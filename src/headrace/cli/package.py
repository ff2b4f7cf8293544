"""`headrace package zip FILE`: write headrace as a zip for `spark-submit --py-files`, for workers that do not have it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from headrace.package_zip import write_zip

app = typer.Typer(no_args_is_help=True, help="Ship headrace to a cluster.")


@app.callback()
def _group() -> None:
    """Ship headrace to a cluster."""


@app.command("zip")
def command_zip(file: Annotated[Path, typer.Argument(metavar="FILE", help="The zip to write, such as headrace.zip.")]) -> None:
    """Write headrace as a zip for `spark-submit --py-files FILE`; the libraries that it needs must be on the workers."""
    write_zip(file)
    print(f"wrote {file}: headrace {metadata.version('headrace')}, {file.stat().st_size:,} bytes")

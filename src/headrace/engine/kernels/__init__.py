"""Loops over rows and cells that numba compiles once and caches on disk.

All kernels are data-driven: constants, boundaries, spans and offsets are arguments, so a new query of a known shape compiles
nothing. A `valid` array of length zero means that there are no NULLs. An id or cell of −1 means: dropped.

If the package is in a zip, as Spark ships it with --py-files, the modules are first copied to a folder of this machine: numba
caches beside modules, and the path of the zip is another one in every application, so that each would compile for a minute. The
folder is named after the content: applications with the same kernels share it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from zipimport import zipimporter


def unpack_kernels(archive: str, prefix: str, root: Path) -> Path:
    """Copy the modules below `prefix` in a zip to a folder below `root`, unless an earlier process did; return the folder.

    Raises PermissionError if another user owns the root, who could put other code there.
    """
    with zipfile.ZipFile(archive) as file:
        names = sorted(name for name in file.namelist() if name.startswith(prefix) and name.endswith(".py"))
        modules = {name.rpartition("/")[2]: file.read(name) for name in names}
    digest = hashlib.sha256()
    for name, content in modules.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(f"folder {root} belongs to another user; set NUMBA_CACHE_DIR to a folder of your own")
    folder = root / f"kernels-{digest.hexdigest()[:16]}"
    if not folder.exists():
        _write_modules(folder, modules)
    return folder


def _write_modules(folder: Path, modules: dict[str, bytes]) -> None:
    """Write the modules to a scratch folder and rename it: another process may do the same at this moment."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    for name, content in modules.items():
        (scratch / name).write_bytes(content)
    try:
        scratch.rename(folder)
    except OSError:  # the other process was faster
        for path in scratch.iterdir():
            path.unlink()
        scratch.rmdir()


def find_cache_root() -> Path:
    """Return the folder for unpacked kernels: NUMBA_CACHE_DIR, else one of this user among the temporary files."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"


_loader: object = __spec__.loader
if isinstance(_loader, zipimporter):
    __path__ = [str(unpack_kernels(_loader.archive, f"{_loader.prefix}kernels/", find_cache_root()))]

"""A store in a folder of a POSIX file system, and atomic, durable writes of single files.

A file is written under a hidden name that no other attempt uses, its scratch file, and renamed when it is complete; file and
folder are synced. A failed write leaves nothing behind, unless the disk refuses to delete, too; `PosixStore.sweep_scratch`
removes what a crash leaves. Readers that ignore names starting with '.' never see an incomplete file.

Every change of the disk is a method of `FileOperations`, so that tests can let each of them fail.

The environment variable HEADRACE_FSYNC=off turns off every fsync of this process and of its children. It is unsafe: after a
loss of power, committed batches may be missing or damaged. It exists for tests, whose files need not survive the test; a killed
process loses nothing either way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from headrace.errors import StorageError
from headrace.storage.store import Chunks, join_key

_EMPTY = pa.py_buffer(b"")
_SCRATCH_NAME = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_NO_HARD_LINKS = frozenset({
    errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV,
})  # fmt: skip


class FileOperations:
    """The changes of a disk, one method for each kind; every one raises OSError if the disk refuses it."""

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Let `write` create and fill a file."""
        write(path)

    def append(self, path: Path, content: bytes, offset: int) -> None:
        """Cut a file off at `offset`, and write bytes there, durably."""
        with path.open("r+b") as file:
            file.truncate(offset)
            file.seek(offset)
            file.write(content)
            file.flush()
            self.sync_descriptor(file.fileno())

    def sync(self, path: Path) -> None:
        """Wait until the content of a file, or the names in a folder, are on disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            self.sync_descriptor(handle)
        finally:
            os.close(handle)

    def sync_descriptor(self, descriptor: int) -> None:
        """Wait until the content of an open file is on disk; do nothing if HEADRACE_FSYNC=off."""
        if os.environ.get("HEADRACE_FSYNC") != "off":
            os.fsync(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name; it replaces the file that had the name."""
        path.replace(target)

    def link(self, path: Path, target: Path) -> None:
        """Give a file a second name; raises FileExistsError if the name is taken."""
        target.hardlink_to(path)

    def unlink(self, path: Path) -> None:
        """Delete a file if there is one."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Create a folder if it is missing."""
        path.mkdir(exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Delete a folder with everything in it; a refusal may leave a part."""
        shutil.rmtree(path)


_files = FileOperations()


class PosixStore:
    """A store in a folder; see `Store`. It holds no state, so that it can be created anywhere for the same folder."""

    def __init__(self, folder: str | Path, identity: str = "", prefix: str = "", *, syncs_names: bool = False) -> None:
        """Take the folder; it is created by the first object.

        `identity` is that of the checkpoint that the folder belongs to, and `prefix` its path in there, with a '/' at the end.
        With `syncs_names`, the first object of a process makes the names of existing folders durable, too.
        """
        self._folder, self._identity, self._prefix = Path(folder), identity, prefix
        self._syncs_names = syncs_names

    @property
    def location(self) -> str:
        """See `Store`."""
        return str(self._folder)

    @property
    def is_remote(self) -> bool:
        """See `Store`."""
        return False

    @property
    def bundles_files(self) -> bool:
        """See `Store`."""
        return False

    def scope(self, folder: str) -> PosixStore:
        """See `Store`."""
        return PosixStore(self._folder / folder, self._identity, f"{self._prefix}{folder}/")

    def path_of(self, key: str) -> Path:
        """Return the path of a key."""
        return self._folder / key

    def name_of(self, key: str) -> str:
        """See `Store`."""
        return str(self._folder / key)

    def place_of(self, key: str) -> str:
        """See `Store`."""
        return f"{self._identity}/{self._prefix}{key}"

    def put(self, key: str, chunks: Chunks, *, if_absent: bool = False, sync: bool = True, keep_local: bool = False) -> None:
        """See `Store`; every object is local."""
        del keep_local
        with self._report_refusal(key):
            path = self._prepare_folder(key)
            write_atomically(path, lambda scratch: _write_chunks(scratch, chunks), sync=sync, if_absent=if_absent)

    def link(self, key: str, new_key: str) -> None:
        """See `Store`."""
        with self._report_refusal(new_key):
            path, target = self.path_of(key), self._prepare_folder(new_key)
            try:
                _files.link(path, target)
            except FileExistsError:  # by another attempt, which may not have synced it
                pass
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                write_atomically(target, lambda scratch: shutil.copyfile(path, scratch), sync=False)
            _files.sync(target)
            _files.sync(target.parent)

    def rename(self, new_keys: Mapping[str, str]) -> None:
        """See `Store`; each folder is synced once."""
        for key, new_key in new_keys.items():
            with self._report_refusal(new_key):
                _give_second_name(self.path_of(key), self.path_of(new_key))
        for folder in {self.path_of(new_key).parent for new_key in new_keys.values()}:
            with self._report_refusal(str(folder)):
                _files.sync(folder)
        for key in new_keys:
            _discard_scratch(self.path_of(key))

    def append(self, key: str, content: bytes, offset: int) -> None:
        """See `Store`."""
        with self._report_refusal(key):
            _files.append(self.path_of(key), content, offset)

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return self.path_of(key).read_bytes()

    def get_appended(self, key: str) -> bytes:
        """See `Store`."""
        return self.get(key)

    def open_local(self, key: str) -> pa.Buffer:
        """See `Store`."""
        path = self.path_of(key)
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            return _EMPTY
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        folder = self.path_of(prefix)
        if not folder.is_dir():
            return []
        return sorted(
            join_key(prefix, entry.name) for entry in os.scandir(folder) if not entry.name.startswith(".") and entry.is_file()
        )

    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        folder = self.path_of(prefix)
        return sorted(join_key(prefix, entry.name) for entry in os.scandir(folder) if entry.is_dir()) if folder.is_dir() else []

    def find_size(self, key: str) -> int | None:
        """See `Store`."""
        try:
            return self.path_of(key).stat().st_size
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        """See `Store`."""
        with self._report_refusal(key, "deleted"):
            _files.unlink(self.path_of(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        """See `Store`."""
        for key in keys:
            self.delete(key)

    def delete_folder(self, key: str) -> None:
        """See `Store`."""
        with self._report_refusal(key, "deleted"):
            _files.remove_folder(self.path_of(key))
            _files.sync(self.path_of(key).parent)

    def sweep_scratch(self, prefix: str, is_written: Callable[[str], bool] = lambda _: False) -> None:
        """See `Store`; deletes the scratch files, but those whose final name `is_written`."""
        folder = self.path_of(prefix)
        for path in folder.iterdir() if folder.is_dir() else ():
            if _SCRATCH_NAME.fullmatch(path.name) and not is_written(path.name[1:]):
                self.delete(join_key(prefix, path.name))

    def sync_names(self) -> None:
        """See `Store`."""
        with self._report_refusal(""):
            for folder, _, _ in os.walk(self._folder):
                _files.sync(Path(folder))
            _files.sync(self._folder.parent)

    def create_folder(self, key: str) -> None:
        """See `Store`."""
        with self._report_refusal(key):
            create_folder(self.path_of(key))

    def _prepare_folder(self, key: str) -> Path:
        path = self.path_of(key)
        if not path.parent.is_dir():
            self.create_folder(str(Path(key).parent))
        if self._syncs_names:
            sync_name_once(path.parent)
            sync_name_once(self._folder)
        return path

    @contextlib.contextmanager
    def _report_refusal(self, key: str, change: str = "written") -> Iterator[None]:
        """Raise StorageError with the name of the object in the place of an OSError; FileExistsError answers a question."""
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise StorageError(
                f"file '{self.name_of(key)}' of the checkpoint cannot be {change}",
                detail=error.strerror or str(error),
                hint="repair the disk or free space on it, then continue: nothing that was committed is lost",
            ) from error


def write_atomically(path: Path, write: Callable[[Path], object], *, sync: bool = True, if_absent: bool = False) -> None:
    """Let `write` fill a scratch file beside `path`, then rename it to `path`; with `sync`, it survives a loss of power.

    An existing file is replaced; with `if_absent`, FileExistsError is raised instead.
    """
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        _files.write(scratch, write)
        if sync:
            _files.sync(scratch)
        if if_absent:
            _publish_exclusively(scratch, path)
        else:
            _files.rename(scratch, path)
    except BaseException:
        _discard_scratch(scratch)
        raise
    if sync:
        _files.sync(path.parent)


def _publish_exclusively(scratch: Path, path: Path) -> None:
    """Rename a scratch file unless the name is taken; without hard links, the check and the rename are two steps."""
    try:
        _files.link(scratch, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        _files.rename(scratch, path)
    else:
        _discard_scratch(scratch)


def _give_second_name(path: Path, target: Path) -> None:
    """Give a file a second name, so that it has a durable one at every moment; without hard links, rename it.

    Nothing happens if the file has the second name only: an earlier attempt got so far.
    """
    try:
        try:
            _files.link(path, target)
        except FileExistsError:
            if not target.samefile(path):  # the name is that of another file
                _files.rename(path, target)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            _files.rename(path, target)
    except FileNotFoundError:
        if not target.exists():
            raise


def _discard_scratch(scratch: Path) -> None:
    """Delete a scratch file. A disk that refuses keeps it until the next sweep: it is not an error of its own."""
    with contextlib.suppress(OSError):
        _files.unlink(scratch)


def create_folder(path: Path) -> None:
    """Create a folder and its parents, durably, those that are missing."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.is_dir()]):
        _make_folder_durably(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: those that were created, and the absence of those that were deleted."""
    _files.sync(folder)


@lru_cache(maxsize=1024)
def sync_name_once(folder: Path) -> None:
    """Make the name of a folder durable, once in a process: a killed process may have created it and not synced it."""
    _files.sync(folder.parent)


def _make_folder_durably(folder: Path) -> None:
    """Create a folder; remove it again if its name is not durable, so that the next attempt syncs it."""
    _files.make_folder(folder)
    try:
        _files.sync(folder.parent)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file, atomically and durably."""
    write_atomically(path, lambda scratch: _write_chunks(scratch, [content]))


def _write_chunks(path: Path, chunks: Chunks) -> None:
    with path.open("xb") as file:
        file.writelines(chunks)

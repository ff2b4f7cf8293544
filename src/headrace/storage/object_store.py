"""A store in an object store: S3, Google Cloud Storage, Azure Blob Storage, or the memory of this process.

An object appears as a whole, and survives as soon as the request succeeds, so there are no scratch files and nothing to sync. A
put that must not replace anything is one conditional request, and so is the renewal of a lease: two drivers cannot both succeed.
Objects that are read with `open_local` are kept in files of this machine (`local_cache`): their names are never used twice.

An object that grows is a base and small objects (`growing_object`): an append is one small request.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore, from_url

from headrace.errors import SessionError, StorageError
from headrace.storage.growing_object import GrowingObject
from headrace.storage.local_cache import get_local_cache
from headrace.storage.requests import run_requests
from headrace.storage.store import Chunks, VersionConflictError, join_key

_CLIENT_OPTIONS = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url",
    "timeout", "user_agent",
})  # fmt: skip
_MEMORY: dict[str, MemoryStore] = {}
_MAX_DELETED = 1000  # keys of one request
_PART_BYTES = 1 << 20
_MULTIPART_BYTES = 256 << 20  # S3 takes 5 GiB in one request; on a server of this machine, parts took half as long again
_UPLOAD_PART_BYTES = 8 << 20


class ObjectStore:
    """A store below a URL; see `Store`."""

    def __init__(self, url: str, options: Mapping[str, str], identity: str = "", prefix: str = "") -> None:
        """Take the URL of the top folder and the options of its provider.

        `identity` is that of the checkpoint that the store belongs to, and `prefix` the path of this store in there, with a '/'
        at the end. Raises SessionError for an invalid option.
        """
        self._url, self._options, self._identity, self._prefix = url, dict(options), identity, prefix
        self._client, self._base = _open_client(url, tuple(sorted(self._options.items())), os.getpid())
        self._growing: dict[str, GrowingObject] = {}  # objects that this store appends to, whose only writer it is

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without the connection."""
        return ObjectStore, (self._url, self._options, self._identity, self._prefix)

    @property
    def location(self) -> str:
        """See `Store`."""
        return f"{self._url}/{self._prefix}".rstrip("/")

    @property
    def is_remote(self) -> bool:
        """See `Store`."""
        return not self._url.startswith("memory://")

    @property
    def bundles_files(self) -> bool:
        """See `Store`."""
        return True

    def scope(self, folder: str) -> ObjectStore:
        """See `Store`."""
        return ObjectStore(self._url, self._options, self._identity, f"{self._prefix}{folder}/")

    def _path_of(self, key: str) -> str:
        """Return the path of a key for the client."""
        return f"{self._base}{self._prefix}{key}"

    def name_of(self, key: str) -> str:
        """See `Store`."""
        return f"{self._url}/{self._prefix}{key}"

    def place_of(self, key: str) -> str:
        """See `Store`."""
        return f"{self._identity}/{self._prefix}{key}"

    def put(self, key: str, chunks: Chunks, *, if_absent: bool = False, sync: bool = True, keep_local: bool = False) -> None:
        """See `Store`; every object is durable."""
        del sync
        content = b"".join(chunks)
        try:
            with self._report_refusal(key):
                self._put(key, content, "create" if if_absent else "overwrite")
        except AlreadyExistsError:
            raise FileExistsError(self.name_of(key)) from None
        grown = self._growing.pop(key, None)
        if grown is not None:
            grown.delete_tails()
        if keep_local:
            get_local_cache().add(self._cached_name(key), [content])

    def _put(self, key: str, content: bytes, mode: Any) -> str | None:
        is_large = len(content) > _MULTIPART_BYTES and mode == "overwrite"  # parts have no conditions
        options: Any = {"use_multipart": is_large, **({"chunk_size": _UPLOAD_PART_BYTES} if is_large else {})}
        return obstore.put(self._client, self._path_of(key), content, mode=mode, **options)["e_tag"]

    def link(self, key: str, new_key: str) -> None:
        """See `Store`; copies the object."""
        with self._report_refusal(new_key):
            obstore.copy(self._client, self._path_of(key), self._path_of(new_key))

    def rename(self, new_keys: Mapping[str, str]) -> None:
        """See `Store`; copies the objects at the same time, then deletes all of them under their first names."""
        run_requests(lambda names: self._copy(*names), list(new_keys.items()))
        self.delete_many(new_keys)

    def _copy(self, key: str, new_key: str) -> None:
        try:
            with self._report_refusal(new_key, "renamed"):
                obstore.copy(self._client, self._path_of(key), self._path_of(new_key))
        except FileNotFoundError as error:
            if self.find_size(new_key) is None:
                raise StorageError(f"object '{self.name_of(key)}' cannot be renamed", detail="it does not exist") from error

    def append(self, key: str, content: bytes, offset: int) -> None:
        """See `Store`; never leaves a part."""
        grown = self._growing.get(key) or GrowingObject(self, key)
        grown.append(content, offset)
        self._growing[key] = grown

    def get_appended(self, key: str) -> bytes:
        """See `Store`."""
        grown = self._growing[key] = GrowingObject(self, key)
        return grown.read()

    def write(self, key: str, content: bytes) -> None:
        """Replace an object, and nothing else."""
        with self._report_refusal(key):
            self._put(key, content, "overwrite")

    def get(self, key: str) -> bytes:
        """See `Store`."""
        with self._report_refusal(key, "read"):
            return bytes(obstore.get(self._client, self._path_of(key)).bytes())

    def open_local(self, key: str) -> pa.Buffer:
        """See `Store`; fetches an object that this machine does not have."""
        name = self._cached_name(key)
        content = get_local_cache().find(name)
        if content is not None:
            return content
        fetched = self.get(key)
        kept = get_local_cache().add(name, [fetched])
        return pa.py_buffer(fetched) if kept is None else kept

    def _cached_name(self, key: str) -> str:
        return f"{self._url} {self._identity} {self._prefix}{key}"

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        return sorted(join_key(prefix, entry["path"].rpartition("/")[2]) for entry in self._list_entries(prefix)["objects"])

    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        return sorted(
            join_key(prefix, path.rstrip("/").rpartition("/")[2]) for path in self._list_entries(prefix)["common_prefixes"]
        )

    def _list_entries(self, prefix: str) -> Any:
        with self._report_refusal(prefix, "listed"):
            return obstore.list_with_delimiter(self._client, self._path_of(prefix).rstrip("/") or None)

    def list_entries(self, prefix: str, *, recursive: bool) -> Iterator[Any]:
        """Yield what the store says of the objects below a folder, or of the object of that name: path, size, e_tag, time."""
        whole = self._path_of(prefix).rstrip("/")
        with self._report_refusal(prefix, "listed"):
            if recursive:
                found: Sequence[Any] = [entry for page in obstore.list(self._client, whole or None) for entry in page]
            else:
                found = obstore.list_with_delimiter(self._client, whole or None)["objects"]
            if not found and prefix:
                with contextlib.suppress(FileNotFoundError):
                    found = [obstore.head(self._client, whole)]
        yield from ({**entry, "path": entry["path"].removeprefix(self._path_of(""))} for entry in found)

    def get_entry(self, key: str) -> Any:
        """Return what the store says of an object: path, size, e_tag, time; raises FileNotFoundError if there is none."""
        with self._report_refusal(key, "read"):
            return obstore.head(self._client, self._path_of(key))

    def open_reader(self, key: str) -> io.BufferedReader:
        """Return a file object that fetches the parts of an object that are read."""
        return io.BufferedReader(_PartReader(self._client, self._path_of(key), int(self.get_entry(key)["size"])), _PART_BYTES)

    def create_folder(self, key: str) -> None:
        """See `Store`; there are no folders."""

    def find_size(self, key: str) -> int | None:
        """See `Store`."""
        try:
            with self._report_refusal(key, "read"):
                return int(obstore.head(self._client, self._path_of(key))["size"])
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        """See `Store`."""
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        """See `Store`; up to 1,000 objects in a request."""
        listed = list(keys)
        for start in range(0, len(listed), _MAX_DELETED):
            batch = listed[start : start + _MAX_DELETED]
            with self._report_refusal(batch[0], "deleted"):
                _delete_existing(self._client, [self._path_of(key) for key in batch])
            for key in batch:
                self._growing.pop(key, None)
                get_local_cache().remove(self._cached_name(key))

    def delete_folder(self, key: str) -> None:
        """See `Store`."""
        with self._report_refusal(key, "deleted"):
            paths = [entry["path"] for page in obstore.list(self._client, self._path_of(key)) for entry in page]
        self.delete_many(path.removeprefix(self._path_of("")) for path in paths if path.startswith(self._path_of(f"{key}/")))

    def sweep_scratch(self, prefix: str, is_written: Callable[[str], bool] = lambda _: False) -> None:
        """See `Store`; a failed put leaves nothing."""

    def sync_names(self) -> None:
        """See `Store`; every object is durable."""

    def get_version(self, key: str) -> tuple[bytes, str] | None:
        """See `VersionedStore`."""
        try:
            with self._report_refusal(key, "read"):
                result = obstore.get(self._client, self._path_of(key))
                return bytes(result.bytes()), str(result.meta["e_tag"])
        except FileNotFoundError:
            return None

    def replace_version(self, key: str, content: bytes, version: str | None) -> str:
        """See `VersionedStore`."""
        try:
            with self._report_refusal(key):
                return str(self._put(key, content, "create" if version is None else {"e_tag": version}))
        except (AlreadyExistsError, PreconditionError) as error:
            raise VersionConflictError(key) from error

    @contextlib.contextmanager
    def _report_refusal(self, key: str, change: str = "written") -> Iterator[None]:
        """Raise StorageError with the name of the object for a failed request; a missing or existing object is an answer."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and change != "written":
                raise
            raise StorageError(
                f"object '{self.name_of(key)}' cannot be {change}",
                detail=str(error).partition("\n\nDebug source")[0],
                hint="check the bucket, the credentials and the network, then continue: nothing that was committed is lost",
            ) from error


class _PartReader(io.RawIOBase):
    """An object as a file: every read is a request for a range of bytes."""

    def __init__(self, client: Any, path: str, size: int) -> None:
        self._client, self._path, self._size, self._position = client, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, target: Any) -> int:
        end = min(self._position + len(target), self._size)
        if end <= self._position:
            return 0
        try:
            content = obstore.get_range(self._client, self._path, start=self._position, end=end)
        except BaseError as error:
            raise OSError(str(error)) from error
        target[: len(content)] = memoryview(content)
        self._position += len(content)
        return len(content)


def _delete_existing(client: Any, keys: list[str]) -> None:
    """Delete objects; a provider may answer that one of them does not exist, and then has not deleted those after it."""
    try:
        obstore.delete(client, keys)
    except FileNotFoundError:
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(client, key)


@lru_cache(maxsize=64)
def _open_client(url: str, options: tuple[tuple[str, str], ...], process: int) -> tuple[Any, str]:
    """Return a client, and the path of the URL if the client does not add it itself, with a '/' at the end.

    A process that was forked must not use the client of its parent, hence `process`.
    """
    del process
    if url.startswith("memory://"):
        name, _, path = url.removeprefix("memory://").partition("/")
        return _MEMORY.setdefault(name, MemoryStore()), f"{path}/" if path else ""
    settings = {name.lower(): value for name, value in options}
    client_options = {name: _to_bool(settings.pop(name)) for name in sorted(_CLIENT_OPTIONS & settings.keys())}
    endpoints = (settings.get("endpoint"), settings.get("aws_endpoint"), os.environ.get("AWS_ENDPOINT_URL"))
    endpoint = next((text for text in (*endpoints, os.environ.get("AWS_ENDPOINT")) if text), "")
    if endpoint.startswith("http://"):  # whoever names such an endpoint means it
        client_options.setdefault("allow_http", True)
    open_client: Any = from_url  # typed for each provider; the options are those of users
    provider_url = url
    if url.startswith("az://"):  # the library has the account among the options
        account, _, path = url.removeprefix("az://").partition("/")
        settings, provider_url = {"account_name": account, **settings}, f"az://{path}"
    try:
        return open_client(provider_url, config=settings, client_options=client_options), ""
    except (BaseError, ValueError, TypeError) as error:
        raise SessionError(
            f"object store '{url}' cannot be opened",
            detail=str(error).partition("\n\nDebug source")[0],
            hint="check storage_options, see docs/deployment.md",
        ) from error


def _to_bool(value: str) -> Any:
    return {"true": True, "false": False}.get(str(value).lower(), value)

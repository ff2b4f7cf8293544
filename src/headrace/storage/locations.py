"""Locations: the path of a folder, or a URL that names the store.

    /data/checkpoint   file:/data/checkpoint        a folder
    s3://bucket/path   gs://bucket/path   az://account/container/path     an object store
    memory://name                                   a store in the memory of this process, for tests

An unknown scheme is an error, never the name of a folder. Credentials come from the environment, as the tools of each provider
read it, or from the storage options of a session (`Session(storage_options=…)`); they are never stored in a checkpoint. An option
whose name is a URL has a table of further options for what is below that URL, so that one session uses several providers. The
session's thread and its tasks work within `use_storage_options`: sources and sinks are values without credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from headrace.errors import CheckpointError, HeadraceError, SessionError
from headrace.storage.posix import PosixStore
from headrace.storage.store import Store

StorageOptions = Mapping[str, str | Mapping[str, str]]

OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "memory")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/*)")
_NO_OPTIONS: StorageOptions = MappingProxyType({})
_options_in_use: ContextVar[StorageOptions] = ContextVar("storage_options", default=_NO_OPTIONS)


def is_url(location: str) -> bool:
    """Return whether a location is that of an object store."""
    match = _SCHEME.match(location)
    return match is not None and match[1].lower() in OBJECT_SCHEMES and match[2].startswith("//")


def parse_location(
    location: str | Path, error: type[HeadraceError] = CheckpointError, what: str = "checkpoint", base: str = ""
) -> str:
    """Return an absolute path, or a URL of an object store in its normal form; raises `error` for another scheme.

    All locations that users write pass through here. A relative path starts at `base`, a folder or a URL, by default the current
    folder. The text may be a pattern of files; then so is `base`. A Path that was made of a URL has lost a slash, and is refused.
    """
    text = os.fspath(location)
    match = _SCHEME.match(text)
    if match is None or _is_file_name(location, match, base):
        return _join_path(base, text)
    scheme, rest = match[1].lower(), text[match.end(1) + 1 :]
    if is_url(text):
        return f"{scheme.removesuffix('a')}://{rest[2:].rstrip('/')}"
    if scheme == "file":
        return _join_path(base, f"/{rest.lstrip('/')}" if rest.startswith("/") else rest)
    if scheme in OBJECT_SCHEMES and isinstance(location, Path):
        raise error(f"{what} '{text}' is a Path, which cannot be a URL", hint=f"give it as text: '{scheme}://{rest[1:]}'")
    known = ", ".join(f"{name}://" for name in OBJECT_SCHEMES if name != "memory")
    raise error(
        f"{what} '{text}' has the unsupported scheme '{match[1]}'", hint=f"give the path of a folder, file:PATH, or {known}"
    )


def parse_local_path(location: str | Path, what: str) -> Path:
    """Return the absolute path of what must be on this machine; raises HeadraceError for a URL or an unknown scheme."""
    text = parse_location(location, HeadraceError, what)
    if is_url(text):
        raise HeadraceError(f"{what} '{text}' is in an object store", hint="name a folder of this machine")
    return Path(text)


def _is_file_name(location: str | Path, match: re.Match[str], base: str) -> bool:
    """Return whether what looks like a scheme is the beginning of a file name: of an existing file, or of a Path."""
    text = os.fspath(location)
    if match[2] or match.end() == len(text) or match[1].lower() == "file":
        return False
    return isinstance(location, Path) or Path(base, text).exists()


def _join_path(base: str, path: str) -> str:
    """Return the location of a path that starts at a folder or a URL, unless it is absolute."""
    expanded = Path(path).expanduser()
    if is_url(base) and not expanded.is_absolute():
        return f"{base}/{expanded}"
    return str(Path(base, expanded).absolute())


@contextmanager
def use_storage_options(options: StorageOptions) -> Iterator[None]:
    """Set the options of the object stores that are opened in the block without options of their own: those of a session."""
    token = _options_in_use.set(options)
    try:
        yield
    finally:
        _options_in_use.reset(token)


def select_options(options: StorageOptions, location: str) -> dict[str, str]:
    """Return the options for a URL: the common ones, and those of the URLs above it, the longest last."""
    selected = {name: value for name, value in options.items() if isinstance(value, str)}
    for prefix in sorted(options, key=len):
        further = options[prefix]
        if not isinstance(further, str) and f"{location}/".startswith(f"{_normalize_prefix(prefix)}/"):
            selected |= further
    return selected


def _normalize_prefix(prefix: str) -> str:
    """Return the URL that names a table of options as locations are written: s3 for s3a, no slash at the end."""
    return parse_location(prefix) if is_url(prefix) else prefix.rstrip("/")


def get_storage_options(url: str) -> dict[str, str]:
    """Return the options of `use_storage_options` for a URL."""
    return select_options(_options_in_use.get(), url)


def open_store(location: str, identity: str = "", options: StorageOptions | None = None) -> Store:
    """Return the store of a parsed location; `identity` is that of the checkpoint that it holds.

    Without `options` it has those of `use_storage_options`.
    Raises HeadraceError if the library for object stores is missing, or an option is invalid.
    """
    if not is_url(location):
        return PosixStore(location, identity)
    try:
        from headrace.storage.object_store import ObjectStore  # noqa: PLC0415  loads a library that folders do not need
    except ImportError as error:
        raise SessionError(
            f"'{location}' needs a library that is not installed", detail=str(error), hint="pip install 'headrace[s3]'"
        ) from error

    chosen = get_storage_options(location) if options is None else select_options(options, location)
    return ObjectStore(location, chosen, identity)

"""Folders and URLs that workers read or write: those of file sources, file sinks and dead letters; and what probes them.

The driver leaves a file in a folder that workers read; a worker that does not see it has another folder. Where workers write,
each writes a file that the driver looks for. Of an object store that is read, a worker lists one object: a bucket with input may
be read-only, and be empty.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.file_access import is_glob, list_files
from headrace.connectors.files import FileSource
from headrace.connectors.pending_files import PENDING_FOLDER, open_sink_store
from headrace.connectors.sinks import Sink
from headrace.connectors.skipped_rows import is_letter_topic
from headrace.connectors.source import Source
from headrace.errors import HeadraceError
from headrace.storage.locations import is_url


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A folder, a pattern of files or a URL that workers use; `use` says what for, in messages."""

    location: str
    use: str
    is_written: bool


@dataclass(frozen=True, slots=True)
class PlaceCheck:
    """What a worker found: why it cannot use a place, or the key of the file that it wrote there."""

    refused: str = ""
    answer: str = ""


def list_source_places(source: Source) -> list[WorkerPlace]:
    """Return the places of a source: files, and dead letters."""
    places = [WorkerPlace(source.path, "folder of the stream", is_written=False)] if isinstance(source, FileSource) else []
    dead_letter = str(getattr(source, "dead_letter", ""))
    if not dead_letter or is_letter_topic(dead_letter):
        return places
    return [*places, WorkerPlace(dead_letter, "folder of dead letters", is_written=True)]


def list_sink_places(sinks: Iterable[Sink]) -> list[WorkerPlace]:
    """Return the places of sinks that workers write to."""
    paths = [str(getattr(sink, "path", "")) for sink in sinks if sink.written_by_workers]
    return [WorkerPlace(path, "folder of the sink", is_written=True) for path in paths if path]


@contextlib.contextmanager
def leave_files(places: Sequence[WorkerPlace]) -> Iterator[dict[WorkerPlace, str]]:
    """Write a file into each folder that is read, and yield the paths that workers must see.

    Of a folder that is read-only here, workers need a folder of the same path. One that does not exist is left out: its source
    says so itself. Of a place that is written it is the beginning of the keys of workers. Delete all these files at the end:
    an executor may run several tasks of a probe, of which one reports.
    """
    paths: dict[WorkerPlace, str] = {}
    with contextlib.ExitStack() as stack:
        for place in places:
            paths[place] = ""
            if place.is_written:
                paths[place] = f"{PENDING_FOLDER}/probe-{uuid.uuid4().hex}"
                stack.callback(_delete_answers, place, paths[place])
            if place.is_written or is_url(place.location):
                continue
            folder = _find_folder(place.location)
            path = folder / f".headrace-{uuid.uuid4().hex}.tmp"  # sources ignore such names
            try:
                path.touch()
                stack.callback(path.unlink, missing_ok=True)
            except OSError:
                path = folder
            if folder.exists():
                paths[place] = str(path)
            else:
                del paths[place]
        yield paths


def check_places(paths: Mapping[WorkerPlace, str]) -> dict[WorkerPlace, PlaceCheck]:
    """Try in a worker what its tasks will do with these places; the paths are those of `leave_files`."""
    return {place: _check_place(place, path) for place, path in paths.items()}


def _check_place(place: WorkerPlace, path: str) -> PlaceCheck:
    try:
        if place.is_written:
            key = f"{path}-{uuid.uuid4().hex}.tmp"
            open_sink_store(place.location).put(key, [b"probe"], sync=False)
            return PlaceCheck(answer=key)
        if is_url(place.location):
            next(iter(list_files(place.location)), None)
            return PlaceCheck()
        return PlaceCheck("" if Path(path).exists() else "it has another folder of that name, or none")
    except Exception as error:  # noqa: BLE001  reported, whatever it is
        return PlaceCheck(f"{type(error).__name__}: {error}")


def verify_answer(place: WorkerPlace, check: PlaceCheck) -> str:
    """Return in the driver why a worker cannot use a place, or an empty text."""
    if not check.answer:
        return check.refused
    is_seen = open_sink_store(place.location).find_size(check.answer) is not None
    return "" if is_seen else "the driver does not see its file"


def _delete_answers(place: WorkerPlace, prefix: str) -> None:
    """Delete what workers wrote; what the driver cannot list was reported, and is not there for it."""
    with contextlib.suppress(HeadraceError, OSError):
        store = open_sink_store(place.location)
        store.delete_many([key for key in store.list(PENDING_FOLDER) if key.startswith(prefix)])


def _find_folder(path: str) -> Path:
    """Return the folder of a file or of a pattern, or the path itself."""
    folder = next((parent for parent in reversed(Path(path).parents) if is_glob(parent.name)), None)
    if folder is not None:
        return folder.parent
    return Path(path).parent if is_glob(path) or Path(path).is_file() else Path(path)

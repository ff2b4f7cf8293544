"""Folders that workers read and write: which ones a source or a sink has, and what a probe finds there."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connectors import ConsoleSink, FileSource, JsonLinesSink, NoopSink, ParquetSink, RateSource
from headrace.connectors.pending_files import PENDING_FOLDER
from headrace.connectors.worker_places import (
    PlaceCheck,
    WorkerPlace,
    check_places,
    leave_files,
    list_sink_places,
    list_source_places,
    verify_answer,
)


def read_from(location: Path | str) -> WorkerPlace:
    return WorkerPlace(str(location), "folder of the stream", is_written=False)


def write_to(location: Path | str) -> WorkerPlace:
    return WorkerPlace(str(location), "folder of the sink", is_written=True)


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_source_has_its_files_and_a_folder_of_dead_letters(tmp_path):
    files = FileSource(tmp_path, schema="x INT")
    assert list_source_places(files) == [WorkerPlace(str(tmp_path), "folder of the stream", is_written=False)]
    strict = FileSource(tmp_path, schema="x INT", on_error="skip_row", dead_letter=f"jsonl:{tmp_path}/dead")
    assert list_source_places(strict) == [
        *list_source_places(files),
        WorkerPlace(f"{tmp_path}/dead", "folder of dead letters", is_written=True),
    ]
    source = RateSource(5)
    assert list_source_places(source) == []


def test_dead_letters_in_a_topic_are_in_no_folder():
    class Topic:
        dead_letter = "kafka:letters"

    assert list_source_places(Topic()) == []


def test_sinks_have_the_folders_that_workers_write_to(tmp_path):
    sinks = [NoopSink(), ParquetSink(tmp_path / "a"), ConsoleSink(), JsonLinesSink(tmp_path / "b")]
    assert list_sink_places(sinks) == [write_to(tmp_path / "a"), write_to(tmp_path / "b")]


def test_a_worker_with_the_same_folders_finds_and_leaves_files(tmp_path):
    places = [read_from(tmp_path), write_to(tmp_path / "out")]
    with leave_files(places) as paths:
        assert list(paths) == places
        assert [path.parent for path in tmp_path.glob(".headrace-*.tmp")] == [tmp_path], "sources ignore such names"
        first, second = check_places(paths), check_places(paths)
        assert first[places[0]] == PlaceCheck()
        for checks in (first, second):
            assert checks[places[1]].answer.startswith(f"{PENDING_FOLDER}/probe-")
            assert [verify_answer(place, check) for place, check in checks.items()] == ["", ""]
        (tmp_path / "out" / PENDING_FOLDER / "kept").touch()
    assert list_names(tmp_path) == ["out"]
    assert list_names(tmp_path / "out" / PENDING_FOLDER) == ["kept"]


def test_a_worker_with_another_folder_is_noticed(tmp_path):
    with leave_files([read_from(tmp_path)]) as paths:
        for left in tmp_path.glob(".headrace-*"):
            left.unlink()
        [(place, check)] = check_places(paths).items()
        assert verify_answer(place, check) == "it has another folder of that name, or none"
    written = write_to(tmp_path / "out")
    assert verify_answer(written, PlaceCheck(answer=f"{PENDING_FOLDER}/probe-1.tmp")) == "the driver does not see its file"


def test_a_place_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").touch()
    place = write_to(tmp_path / "file" / "out")
    with leave_files([place]) as paths:
        check = check_places(paths)[place]
    assert not check.answer
    assert str(tmp_path / "file") in verify_answer(place, check)


@pytest.mark.parametrize("name", ["x.csv", "*.csv", "*/x.csv", "a[0-9]/*/x?.csv", "**/x.csv"])
def test_of_a_pattern_the_folder_before_it_is_probed(tmp_path, name):
    (tmp_path / "x.csv").touch()
    with leave_files([read_from(tmp_path / name)]) as paths:
        assert [Path(path).parent for path in paths.values()] == [tmp_path]
        assert all(not check.refused for check in check_places(paths).values())
    assert list_names(tmp_path) == ["x.csv"]


def test_a_folder_that_does_not_exist_is_left_to_its_source(tmp_path):
    with leave_files([read_from(tmp_path / "nowhere")]) as paths:
        assert paths == {}


def test_a_read_only_folder_must_exist_in_the_workers(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "touch", refuse)
    place = read_from(tmp_path)
    with leave_files([place]) as paths:
        assert paths == {place: str(tmp_path)}
        assert check_places(paths)[place] == PlaceCheck()


def test_objects_are_listed_without_a_file_of_the_driver():
    place = read_from("memory://bucket-of-worker-places/input")
    with leave_files([place]) as paths:
        assert paths == {place: ""}
        assert check_places(paths)[place] == PlaceCheck()

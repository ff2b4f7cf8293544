"""Every file of a checkpoint, damaged in every way: the same results as without damage, or refused with the name of the file."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.storage.fault_points import install_fault_hook
from support.every_kind_session import BATCHES, BATCHES_BEFORE_STOP, EveryKindSession
from support.examples import scale_examples


class Killed(BaseException):
    """Raised at a fault point; no code of the engine may catch it."""


def run_whole(folder: Path) -> dict[str, list[object]]:
    (folder / "files").mkdir(parents=True)
    run = EveryKindSession(folder / "whole", folder / "files")
    run.run(0, BATCHES)
    run.session.drain()
    results = run.read_results()
    run.session.close()
    assert all(results.values()), "a query without results shows nothing"
    return results


def stop_in_the_middle(folder: Path, step: str) -> None:
    """Run the first batches; then close the session, or crash in the next batch at `step`."""
    (folder / "files").mkdir(parents=True)
    run = EveryKindSession(folder / "checkpoint", folder / "files")
    run.run(0, BATCHES_BEFORE_STOP)
    if step:

        def crash(reached: str) -> None:
            if reached == step:
                raise Killed(step)

        install_fault_hook(folder / "checkpoint", crash)
        with pytest.raises(Killed):
            run.run(BATCHES_BEFORE_STOP, BATCHES_BEFORE_STOP + 1)
        install_fault_hook(folder / "checkpoint", None)
    run.session.close()


def continue_from(folder: Path, first: int) -> dict[str, list[object]]:
    run = EveryKindSession(folder / "checkpoint", folder / "files")
    try:
        run.attach_callback()
        run.session.advance()
        run.run(first, BATCHES)
        run.session.drain()
        return run.read_results()
    finally:
        run.session.close()


def try_to_continue(folder: Path, first: int) -> tuple[dict[str, list[object]], HeadraceError | None]:
    try:
        return continue_from(folder, first), None
    except HeadraceError as error:
        return {}, error


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    return run_whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module", params=["", "logged", "commit", "committed"])
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder with a checkpoint, and the next batch to append."""
    folder = tmp_path_factory.mktemp(f"stopped-{request.param or 'closed'}")
    stop_in_the_middle(folder, request.param)
    return folder, BATCHES_BEFORE_STOP + (1 if request.param else 0)


def damage(path: Path, how: str, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: chance.randrange(1, len(content))])
    else:
        place = chance.randrange(len(content))
        content[place] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


def restore(saved: Path, folder: Path) -> None:
    """Put everything back: the paths stay the same, for they are part of the definition of a file source."""
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)


def list_files(checkpoint: Path) -> list[Path]:
    return sorted(path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file() and path.name != "lock")


def test_an_undamaged_checkpoint_continues(stopped, expected, tmp_path: Path):
    folder, first = stopped
    shutil.copytree(folder, tmp_path / "saved")
    assert continue_from(folder, first) == expected
    restore(tmp_path / "saved", folder)


def test_damage_is_harmless_or_refused_by_name(stopped, expected, tmp_path: Path):
    """The default profile damages a few files of every folder; the full one damages every file several times."""
    folder, first = stopped
    chance = random.Random(f"{folder.name[:10]} {scale_examples(100)}")
    cases = [(file, how) for file in list_files(folder / "checkpoint") for how in ("deleted", "emptied", "cut", "flipped")]
    assert {file.parts[0] for file, _ in cases} >= {"HEADRACE", "manifest", "log", "plans", "state", "results", "sources"}
    chosen = chance.sample(cases, min(len(cases), scale_examples(60)))
    shutil.copytree(folder, tmp_path / "saved")
    refused = 0
    for file, how in chosen:
        if not (folder / "checkpoint" / file).stat().st_size:
            continue
        damage(folder / "checkpoint" / file, how, chance)
        results, error = try_to_continue(folder, first)
        restore(tmp_path / "saved", folder)
        if error is None:
            assert results == expected, f"{file} was {how}, and the results differ"
        else:
            assert names_file(str(error), file), f"{file} was {how}: {error}"
            refused += 1
    assert refused, "no damage was noticed at all"


def names_file(message: str, file: Path) -> bool:
    """Return whether the message names the file, or, where it is the newest of a folder, the folder."""
    return file.name in message or f"checkpoint/{file.parent}' of" in message

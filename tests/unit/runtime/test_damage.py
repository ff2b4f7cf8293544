"""Every file of a checkpoint, damaged in every way: the same results as without damage, or refused with the name of the file.

deleted, emptied, cut, flipped    the file is missing, empty, shorter, or has another bit
swapped                           it and another file of its folder have each other's content
outdated                          its content is that of a file of its folder after an earlier batch, also of itself
foreign                           its content is that of the same file of another checkpoint
unrenamed                         the rename of its scratch file was lost
unlisted                          the whole folder was lost, with all files in it
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.engine import worker_cache
from headrace.errors import HeadraceError
from headrace.storage.fault_points import install_fault_hook
from support import every_kind_session
from support.every_kind_session import BATCHES, BATCHES_BEFORE_STOP, EveryKindSession, make_rows
from support.examples import choose_examples, scale_examples


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
    """Run the first batches; then close the session, or crash in the next batch at `step`. Copy the state after each batch."""
    (folder / "files").mkdir(parents=True)
    run = EveryKindSession(folder / "checkpoint", folder / "files")
    run.run(0, BATCHES_BEFORE_STOP, lambda batch: shutil.copytree(folder / "checkpoint", copy_after(folder, batch)))
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
    worker_cache._CACHES.clear()  # a new process reads every file
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


@dataclass(frozen=True)
class Attack:
    """What is done to a file; `other` is the file whose content it gets."""

    kind: str
    file: Path
    other: Path | None = None

    def run(self, checkpoint: Path, chance: random.Random) -> None:
        path = checkpoint / self.file
        content = bytearray(path.read_bytes())
        match self.kind:
            case "deleted":
                path.unlink()
            case "emptied":
                path.write_bytes(b"")
            case "cut":
                path.write_bytes(content[: chance.randrange(1, len(content))])
            case "flipped":
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                path.write_bytes(content)
            case "swapped":
                assert self.other is not None
                path.write_bytes((checkpoint / self.other).read_bytes())
                (checkpoint / self.other).write_bytes(content)
            case "outdated" | "foreign":
                assert self.other is not None
                path.write_bytes(self.other.read_bytes())
            case "unrenamed":
                path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp"))
            case "unlisted":
                shutil.rmtree(path.parent)
            case _:
                raise AssertionError(self.kind)

    def is_named(self, message: str) -> bool:
        """Return whether a message names a file that was changed, or the folder where it is the newest file of one."""
        files = [self.file, *([self.other] if self.kind == "swapped" and self.other is not None else [])]
        is_in_folder = self.kind == "unlisted" and f"checkpoint/{self.file.parent}/" in message
        return is_in_folder or any(file.name in message or f"checkpoint/{file.parent}' of" in message for file in files)


def list_attacks(folder: Path, other: Path) -> list[Attack]:
    """All attacks on a stopped checkpoint; `other` is another checkpoint."""
    checkpoint = folder / "checkpoint"
    files = [file for file in list_files(checkpoint) if (checkpoint / file).stat().st_size]
    attacks = [Attack(kind, file) for file in files for kind in ("deleted", "emptied", "cut", "flipped", "unrenamed")]
    attacks += [Attack("swapped", *pair) for pair in itertools.combinations(files, 2) if pair[0].parent == pair[1].parent]
    by_folder = itertools.groupby(files, lambda file: file.parent)
    attacks += [Attack("unlisted", next(iter(members))) for parent, members in by_folder if parent.name]
    attacks += [
        Attack("outdated", file, earlier)
        for number in range(BATCHES_BEFORE_STOP)
        for file in files
        for earlier in copy_after(folder, number).joinpath(file.parent).iterdir()
        if earlier.is_file() and earlier.name != "lock" and has_other_content(earlier, checkpoint / file)
    ]
    namesakes = {strip_attempt(file): other / file for file in list_files(other)}
    attacks += [
        Attack("foreign", file, namesakes[strip_attempt(file)])
        for file in files
        if strip_attempt(file) in namesakes and has_other_content(namesakes[strip_attempt(file)], checkpoint / file)
    ]
    return attacks


def has_other_content(path: Path, other: Path) -> bool:
    return path.read_bytes() != other.read_bytes()


def strip_attempt(file: Path) -> Path:
    """The name of a file without what tells attempts apart."""
    return file.with_name(re.sub(r"-[0-9a-f]{8,16}(?=\.)", "", file.name))


def copy_after(folder: Path, batch: int) -> Path:
    """The copy of a checkpoint after an earlier batch."""
    return folder.with_name(f"{folder.name}-{batch}")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkpoint, of the same queries over other rows, stopped after a batch was logged."""
    folder = tmp_path_factory.mktemp("other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(every_kind_session, "make_rows", make_other_rows)
        stop_in_the_middle(folder, "commit")
    return folder / "checkpoint"


def make_other_rows(stream: str, batch: int) -> list[dict[str, object]]:
    return [{**row, "n": row["n"] + 1} for row in make_rows(stream, batch)]  # type: ignore[operator]


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


def test_damage_is_harmless_or_refused_by_name(stopped, other: Path, expected, tmp_path: Path):
    """The default profile tries a few attacks, `soak` all of them."""
    folder, first = stopped
    chance = random.Random(f"{folder.name[:10]} {scale_examples(100)}")
    attacks = list_attacks(folder, other)
    assert {attack.file.parts[0] for attack in attacks} >= {"HEADRACE", "manifest", "log", "plans", "state", "results", "sources"}
    assert {attack.kind for attack in attacks} >= {"swapped", "outdated", "foreign", "unrenamed", "unlisted"}
    shutil.copytree(folder, tmp_path / "saved")
    refused = 0
    for attack in choose_examples(attacks, 30, chance):
        attack.run(folder / "checkpoint", chance)
        results, error = try_to_continue(folder, first)
        restore(tmp_path / "saved", folder)
        if error is None:
            assert results == expected, f"{attack}: the results differ"
        else:
            assert attack.is_named(str(error)), f"{attack}: {error}"
            refused += 1
    assert refused, "no damage was noticed at all"

"""Damage to a file of the checkpoint: a session refuses it, or is not affected."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from headrace.engine import worker_cache
from headrace.errors import HeadraceError
from simulation import schedule as s
from simulation.durable_files import read_rows
from simulation.history import ViolationError

if TYPE_CHECKING:
    from simulation.world import World


def damage_file(world: World, step: s.DamageFile) -> None:
    """Damage a file, let a session run with it, and restore the checkpoint: the session refuses, or is not affected.

    A session that runs on a sound copy tells what is right. A log of rows that is cut in its last line is not noticed: it
    looks like an append that was interrupted, and is left out. So is the deletion of a log entry of whose batch no worker has
    written a file: it looks like a batch that was never logged.
    """
    world.release()
    faults, attempts = world.disk.disarm(), world.workers.attempts
    failing, broken = world.suspend_failures()
    world.workers.observe = lambda job, tasks: None
    backup, random = world.folder / "backup", Random(step.seed)
    shutil.copytree(world.disk.root, backup)
    try:
        expected = _run_probe(world)
        _restore_files(world, backup)
        names = sorted(str(p.relative_to(world.path)) for p in world.path.rglob("*") if p.is_file() and p.name[0] != ".")
        columnar = [name for name in names if name.startswith(("state/", "results/"))]
        names = columnar if columnar and random.random() < 0.5 else [name for name in names if name != "lock"]
        target = world.path / names[step.pick % len(names)]
        damage = _spoil_file(target, random)
        world.note(f"    {damage} {target.relative_to(world.path)}")
        is_hidden = (damage == "cut" and target.suffix == ".jsonl") or (damage == "delete" and _is_lone_entry(target, names))
        found = None if is_hidden else _run_probe(world)
    finally:
        _restore_files(world, backup)
        shutil.rmtree(backup)
        world.disk.mark_durable()
        world.disk.arm(*faults)
        world.failing_sources, world.broken_queries = failing, broken
        world.workers.attempts = attempts  # a probe leaves no zombies
        world.workers.observe = world.observe
    if expected is None or found not in {None, expected}:
        raise ViolationError("unnoticed damage", f"{damage} {target.name}: {found}\nexpected {expected}")
    world.life += 1
    world.survive(world.open)


def _restore_files(world: World, backup: Path) -> None:
    shutil.rmtree(world.disk.root)
    shutil.copytree(backup, world.disk.root)
    worker_cache._CACHES.clear()


def _run_probe(world: World) -> str | None:
    """Run a session to the end of its input; return all that it has to say about its queries, or None if it refuses."""
    try:
        session = world.open_session()
    except HeadraceError as error:
        world.note(f"    refused: {error.message}")
        return None
    try:
        session.drain()
        handles = (session.find(query.name, query.id) for query in world.clients.queries)
        return repr(
            [
                (handle.name, handle.status, handle.emitted, handle.late, read_rows(session, handle, -1))
                for handle in handles
                if handle is not None
            ]
        )
    except HeadraceError as error:
        world.note(f"    refused: {error.message}")
        return None
    finally:
        session._checkpoint.close()


def _spoil_file(path: Path, random: Random) -> str:
    content = path.read_bytes()
    kind = random.choice(("delete", "cut", "flip", "flip"))
    if kind == "delete" or not content:
        path.unlink()
        return "delete"
    if kind == "cut":
        path.write_bytes(content[: random.randrange(len(content))])
    else:
        place = random.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << random.randrange(8))]) + content[place + 1 :])
    return kind


def _is_lone_entry(path: Path, names: list[str]) -> bool:
    """Return whether a file is the log entry of a batch of which no other file exists."""
    written = [f"{folder}/{path.stem}" for folder in ("state", "results", "deliveries", "manifest")]
    return path.parent.name == "log" and not any(name.startswith(tuple(written)) for name in names)

"""Bugs to plant, each a small change of one function; the simulation should find them. `scripts/plant-bugs` plants them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

SOURCES = Path(__file__).resolve().parents[2] / "src" / "headrace"


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug: in `file`, below src/headrace, the text `good`, which occurs once, becomes `bad`."""

    name: str
    file: str
    good: str
    bad: str

    def plant(self, source: str) -> str:
        """Return the source with the bug; raises ValueError if the place does not exist any more."""
        if source.count(self.good) != 1:
            raise ValueError(f"bug '{self.name}' does not fit {self.file}: its text occurs {source.count(self.good)} times")
        return source.replace(self.good, self.bad)

    def find_functions(self) -> list[str]:
        """Return the qualified names of the functions that the bug changes."""
        source = (SOURCES / self.file).read_text(encoding="utf-8")
        good, bad = (dict(_iter_functions(ast.parse(text))) for text in (source, self.plant(source)))
        return [name for name in bad if bad[name] != good.get(name)]

    def plant_in_process(self) -> None:
        """Give the functions that the bug changes their new code, for the rest of this process."""
        broken = compile(self.plant((SOURCES / self.file).read_text(encoding="utf-8")), self.file, "exec", dont_inherit=True)
        module = importlib.import_module("headrace." + self.file.removesuffix(".py").replace("/", "."))
        for name in self.find_functions():
            _find_function(module, name).__code__ = _find_code(broken, name)


def _iter_functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (qualified name, syntax) of all functions and methods, not of those inside of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, ast.dump(child)
        elif isinstance(child, ast.ClassDef):
            yield from _iter_functions(child, f"{prefix}{child.name}.")


def _find_function(module: Any, name: str) -> FunctionType:
    value = module
    for part in name.split("."):
        value = vars(value)[part]
    while not isinstance(value, FunctionType):  # a property, a static method, a cached function
        value = next(getattr(value, name) for name in ("fget", "__wrapped__", "__func__") if hasattr(value, name))
    return value


def _find_code(code: CodeType, name: str) -> CodeType:
    for part in name.split("."):
        code = next(inner for inner in code.co_consts if isinstance(inner, CodeType) and inner.co_name == part)
    return code


_POSIX, _CHECKPOINT, _COORDINATOR = "storage/posix.py", "storage/checkpoint.py", "runtime/coordinator.py"
_PUBLICATION = "runtime/sink_publication.py"
_MANIFESTS = "storage/manifests.py"
_OUTCOME, _REDUCE, _MAP = "runtime/batch_outcome.py", "engine/reduce_stage.py", "engine/map_stage.py"

PLANTED_BUGS = (
    # --- durable files
    PlantedBug(
        "files are renamed before their content is synced", _POSIX, "            _files.sync(scratch)\n", "            pass\n"
    ),
    PlantedBug("folders are not synced", _POSIX, "    if sync:\n        _files.sync(path.parent)\n", ""),
    PlantedBug("appended lines are not synced", _POSIX, "            self.sync_descriptor(file.fileno())\n", ""),
    PlantedBug(
        "a part of a line stays when the disk is full",
        _POSIX,
        "            file.truncate(offset)\n            file.seek(offset)\n",
        "            file.seek(0, os.SEEK_END)\n",
    ),
    PlantedBug(
        "new folders are not synced",
        _POSIX,
        "        _files.sync(folder.parent)\n    except OSError:",
        "        pass\n    except OSError:",
    ),
    PlantedBug(
        "incomplete files are not swept",
        _CHECKPOINT,
        '        for folder in ("log", "manifest", *_SWEPT_FOLDERS):\n            self.store.sweep_scratch(',
        "        for folder in ():\n            self.store.sweep_scratch(",
    ),
    PlantedBug(
        "two sessions may lock a checkpoint",
        "storage/checkpoint_lock.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
    ),
    PlantedBug(
        "state files are not swept",
        _CHECKPOINT,
        "for folder in _SWEPT_FOLDERS for key in self.store.list(folder)]",
        "for folder in _SWEPT_FOLDERS[1:] for key in self.store.list(folder)]",
    ),
    PlantedBug(
        "recovery reads the oldest manifest",
        _MANIFESTS,
        "max(keys, key=parse_batch)",
        "min(keys, key=parse_batch)",
    ),
    PlantedBug(
        "superseded manifests stay",
        _MANIFESTS,
        "return (_numbered_key(batch - 1),)",
        "return ()",
    ),
    PlantedBug(
        "workers keep the plan of an earlier epoch",
        "engine/worker_cache.py",
        "        if file not in self._loaded:\n",
        "        file = next((other for other in self._loaded if other.endswith('.plan') and other[:10] == file[:10]), file)\n"
        "        if file not in self._loaded:\n",
    ),
    PlantedBug(
        "a drop is acknowledged before it is logged",
        "session.py",
        "            self._coordinator.log_commands()\n",
        "            pass\n",
    ),
    PlantedBug(
        "the log entry is not synced",
        _CHECKPOINT,
        "documents.put_record(self.store, self._log_key(batch), entry)",
        "documents.put_record(self.store, self._log_key(batch), entry, sync=False)",
    ),
    PlantedBug(
        "the manifest is not synced",
        _MANIFESTS,
        "if_absent=not self._is_refused(key))",
        "if_absent=not self._is_refused(key), sync=False)",
    ),
    PlantedBug(
        "files of the winning attempt are swept",
        _CHECKPOINT,
        "if key not in kept and not (is_running",
        "if (key not in kept or folder == 'state') and not (is_running",
    ),
    PlantedBug(
        "the check sum of documents is ignored",
        "storage/documents.py",
        "    if checksum != compute_checksum(sealed).encode():",
        "    if not checksum:",
    ),
    PlantedBug(
        "the check sum of buffers is ignored",
        "storage/container.py",
        "if compute_checksum_number(parts[-1]) != checksum:",
        "if size < 0:",
    ),
    PlantedBug("a torn line is not removed", "storage/append_log.py", 'end = content.rfind(b"\\n") + 1', "end = len(content)"),
    PlantedBug(
        "packing loses the first batch", "storage/result_files.py", "kept = batches >= first_kept", "kept = batches > first_kept"
    ),
    PlantedBug(
        "a packed file replaces one file too many",
        "storage/result_log.py",
        "self.files[first + len(packed.parts) :]",
        "self.files[first + len(packed.parts) + 1 :]",
    ),
    PlantedBug(
        "a reader misses the newest batch of a file",
        "storage/result_log.py",
        "            if file.last_batch <= after or file.first_batch > until:",
        "            if file.last_batch <= after or file.first_batch >= until > 0:",
    ),
    PlantedBug(
        "positions of readers are off by one",
        "storage/result_files.py",
        'side="right")\n        return',
        'side="left")\n        return',
    ),
    # --- the driver
    PlantedBug(
        "a failed source loses the commands of the batch",
        _COORDINATOR,
        "        self.command_queue.requeue(entry.commands)\n",
        "",
    ),
    PlantedBug(
        "a failed plan loses the commands of the batch",
        _COORDINATOR,
        "            if self.unfinished_entry is None:\n                self.command_queue.requeue(commands)\n",
        "",
    ),
    PlantedBug(
        "commands that cannot join an unfinished batch are lost",
        _COORDINATOR,
        "        except BaseException:\n            self.command_queue.requeue(commands)\n",
        "        except BaseException:\n",
    ),
    PlantedBug(
        "sink files are published before the commit",
        _COORDINATOR,
        "        self.checkpoint.commit(batch.state.batch, batch.state)\n",
        "        self.publisher.publish(batch.state)\n        self.checkpoint.commit(batch.state.batch, batch.state)\n",
    ),
    PlantedBug(
        "recovery does not publish sink files",
        _PUBLICATION,
        "        self._plan_retry(self._publish(state, is_recovery=True))\n",
        "        state.unpublished = {}\n",
    ),
    PlantedBug(
        "sink files that do not count are published",
        "connectors/pending_files.py",
        "    store.delete_many(swept)\n",
        "    store.rename({key: key.partition('-')[2].rpartition('-')[0] + '.jsonl' for key in swept})\n",
    ),
    PlantedBug(
        "names of published files are not synced",
        _POSIX,
        "                _files.sync(folder)\n        for key",
        "                pass\n        for key",
    ),
    PlantedBug("the oldest query is blamed", "runtime/isolation.py", "(by_age[failing - 1], error)", "(by_age[0], error)"),
    PlantedBug(
        "a batch is not repeated without the culprit",
        _COORDINATOR,
        "        self._log_entry(replace(entry, commands=(*entry.commands, RemoveQuery(*culprit))))\n",
        "        raise error\n",
    ),
    PlantedBug(
        "a failed batch is forgotten",
        _COORDINATOR,
        "            except BaseException:\n                self._has_failed_attempt = True\n",
        "            except BaseException:\n                self.unfinished_entry = None\n",
    ),
    PlantedBug("recovery ignores the log entry", _COORDINATOR, "self.checkpoint.read_log_entry(self.state.batch + 1)", "None"),
    PlantedBug(
        "superseded files are deleted before the commit",
        _COORDINATOR,
        "        self.checkpoint.commit(batch.state.batch, batch.state)\n",
        "        self.checkpoint.delete_superseded(-9, self.state.referenced_files() - batch.state.referenced_files())\n"
        "        self.checkpoint.commit(batch.state.batch, batch.state)\n",
    ),
    PlantedBug(
        "sources drop rows before the commit",
        _COORDINATOR,
        "        self.checkpoint.commit(batch.state.batch, batch.state)\n",
        "        self.sources.prune({name: stream.position for name, stream in batch.state.declared_streams().items()})\n"
        "        self.checkpoint.commit(batch.state.batch, batch.state)\n",
    ),
    PlantedBug(
        "a position is not updated",
        _COORDINATOR,
        "            state.streams[name].position = position\n",
        "            state.streams[name].position = position if name != 'beta' else state.streams[name].position\n",
    ),
    PlantedBug(
        "a running batch changes the committed streams",
        "runtime/engine_state.py",
        "copy.streams = {name: copy_record(stream) for name, stream in self.streams.items()}",
        "copy.streams = dict(self.streams)",
    ),
    PlantedBug(
        "a running batch changes the committed queries",
        "runtime/engine_state.py",
        "copy.queries = {number: copy_record(query) for number, query in self.queries.items()}",
        "copy.queries = self.queries",
    ),
    PlantedBug("a withdrawn query becomes live", "runtime/command_queue.py", "            self._queued = kept\n", ""),
    PlantedBug(
        "deliveries are recorded before they happen",
        "runtime/delivery.py",
        "            self._queued_up_to, self._is_first_submission = batch, False\n",
        "            self._queued_up_to, self._is_first_submission = batch, False\n"
        '            put_document(self._checkpoint.store, _MARKER, {"batch": batch})\n',
    ),
    PlantedBug(
        "the last batch is delivered again",
        "runtime/delivery.py",
        "if file.last_batch > start:",
        "if file.last_batch >= start:",
    ),
    PlantedBug(
        "deliveries do not wait for a callback",
        "runtime/sink_queue.py",
        "return isinstance(self.sink, MissingCallback)",
        "return False",
    ),
    PlantedBug(
        "a removed query has one batch too many",
        "query.py",
        "min(last, self._record.last_batch - 1)",
        "min(last, self._record.last_batch)",
    ),
    PlantedBug(
        "failures in one partition are overlooked",
        _OUTCOME,
        "    for report in reports:\n        for part, message",
        "    for report in reports[:1]:\n        for part, message",
    ),
    PlantedBug(
        "the count of emitted rows is that of the last batch",
        _OUTCOME,
        "state.queries[number].emitted += count",
        "state.queries[number].emitted = count",
    ),
    PlantedBug(
        "the watermark goes back",
        _OUTCOME,
        "stream.seen = max(stream.seen, seen)",
        "stream.seen = seen if seen > MIN_TIME else stream.seen",
    ),
    PlantedBug("the partitions of the state are not recorded", _OUTCOME, "    state.state_map = state.partition_map\n", ""),
    PlantedBug(
        "a new epoch drops the epochs before it",
        "runtime/stream_plans.py",
        "kept = tuple(e for e in stream.epochs if e.start < start)",
        "kept = tuple(e for e in stream.epochs if e.start < start)[:-1]",
    ),
    PlantedBug(
        "an epoch begins with the last row seen",
        "runtime/epochs.py",
        "return MIN_TIME if seen == MIN_TIME else seen + 1",
        "return seen",
    ),
    # --- workers
    PlantedBug(
        "state is not repartitioned when ranges are merged",
        "engine/repartition.py",
        "is_moved=(item.start, item.end) not in unmoved,",
        "is_moved=(item.start, item.end) not in unmoved and len(sources[item.partition]) == 1,",
    ),
    PlantedBug(
        "open windows lose their state too early",
        _REDUCE,
        "return any(end is not None and end > watermark for",
        "return any(end is not None and end > watermark + 1_000_000 for",
    ),
    PlantedBug(
        "deferred join inputs are lost",
        _REDUCE,
        "                    deferred.join_rows.append(routed)\n",
        "                    pass\n",
    ),
    PlantedBug(
        "rows of open windows are taken for late", _MAP, "floor - operator.retention + 1\n", "floor - operator.retention // 2\n"
    ),
    PlantedBug(
        "the watermark follows the fastest stream",
        "engine/batch_job.py",
        "return min(\n            reached[name] - self",
        "return max(\n            reached[name] - self",
    ),
    PlantedBug(
        "a reused bit keeps the rows of its former query",
        "engine/joins/state_store.py",
        "        if translation.keeps(query.bit for query in queries) and not rejoined:\n",
        "        if not rejoined:\n",
    ),
    PlantedBug(
        "sessions close a microsecond late",
        "engine/operators/sessions.py",
        "sessions.lasts <= watermark - gap",
        "sessions.lasts < watermark - gap",
    ),
    # --- sources
    PlantedBug(
        "rows are listed before they are written",
        "connectors/memory.py",
        "        store.put(file.key, [content])\n        self._log.append(asdict(file))\n",
        "        self._log.append(asdict(file))\n        store.put(file.key, [content])\n",
    ),
    PlantedBug(
        "a source drops a file that is not read yet",
        "connectors/memory.py",
        "if file.number < first_kept]",
        "if file.number <= first_kept]",
    ),
)

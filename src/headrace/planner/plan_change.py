"""The difference between two plans of a stream, so that a changed plan is written and loaded by what has changed.

An operator follows from its layout and its subscribers, so a change names only those that came and went:

    plan before     price: q1 q2 … q9999        k, price: q7 q8
    change          price: − q2 + q10000        k, price: the same object

Every process that applies a change gets a plan that is equal to the one that the driver made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from headrace.model.record import record
from headrace.planner.group_members import MemberTable
from headrace.planner.predicate_index import CellLayout
from headrace.planner.shared_plan import AnyOperator, JoinBuffer, StreamPlan, Subscriber, assemble_plan, build_operator
from headrace.planner.statistics import StreamStatistics

_sort_key = attrgetter("query_id", "branch")


@record("operator-change")
@dataclass(frozen=True, slots=True)
class OperatorChange:
    """An operator as its difference to number `base` of the plan before, or to nothing (None).

    `removed` are the positions of its subscribers that are gone.
    """

    base: int | None
    layout: CellLayout
    removed: tuple[int, ...]
    added: tuple[Subscriber, ...]


@record("plan-change")
@dataclass(frozen=True, slots=True)
class PlanChange:
    """A plan as its difference to another one. A number stands for the operator, or join buffer, of that number there."""

    operators: tuple[int | OperatorChange, ...]
    join_buffers: tuple[int | JoinBuffer, ...]
    columns: frozenset[str]
    stats: StreamStatistics

    @property
    def size(self) -> int:
        """The number of subscribers that came or went, and one for the file itself."""
        changed = (item for item in self.operators if isinstance(item, OperatorChange))
        rebuilt = (item for item in self.join_buffers if isinstance(item, JoinBuffer))
        subscribers = sum(len(item.removed) + len(item.added) for item in changed)
        return 1 + subscribers + sum(len(item.subscribers) for item in rebuilt)


@record("plan-base")
@dataclass(frozen=True, slots=True)
class PlanBase:
    """The plan to which a plan is stored as the difference.

    `full_file` has its full form, too, for processes that do not have the plan before; it is empty for most. `depth` and `size`
    are those of all differences since a plan in full form.
    """

    file: str
    depth: int
    size: int
    full_file: str = ""


def describe_change(before: StreamPlan, after: StreamPlan) -> PlanChange:
    """Return the difference between two plans; subscribers are the same if they are one object, as with a `PlanMemo`."""
    numbers = {id(operator): number for number, operator in enumerate(before.operators)}
    owners = {id(subscriber): number for number, operator in enumerate(before.operators) for subscriber in operator.subscribers}
    operators: list[int | OperatorChange] = []
    for operator in after.operators:
        number = numbers.get(id(operator))
        operators.append(_describe_operator(before.operators, operator, owners) if number is None else number)
    join_buffers = tuple(
        next((number for number, other in enumerate(before.join_buffers) if other == buffer), buffer)
        for buffer in after.join_buffers
    )
    return PlanChange(tuple(operators), join_buffers, after.columns, after.stats)


_MAX_DEPTH = 32  # differences that a process reads which has no earlier plan
_MAX_SIZE_SHARE = 4  # a full form is stored once so large a part of a plan has changed, which costs each change a constant


def choose_base(
    file: str, change: PlanChange, plan: StreamPlan, earlier: PlanBase | None, make_name: Callable[[], str]
) -> PlanBase | None:
    """Return how a plan is stored that differs from the one in `file` by a change; None for its full form alone.

    `earlier` is the base of that one, and `make_name` returns a name for the file of the full form.
    """
    limit = len(plan.subscribers) / _MAX_SIZE_SHARE
    if change.size >= limit:
        return None
    depth, size = 1, change.size
    if earlier is not None and not earlier.full_file:
        depth, size = earlier.depth + 1, earlier.size + change.size
    return PlanBase(file, depth, size, make_name() if depth >= _MAX_DEPTH or size >= limit else "")


def list_plan_files(file: str, bases: Mapping[str, PlanBase]) -> list[str]:
    """Return the file of a plan, and those that a process without any plan needs beside it."""
    files = [file]
    while (base := bases.get(files[-1])) is not None:
        files.append(base.full_file or base.file)
        if base.full_file:
            break
    return files


def find_source(file: str, bases: Mapping[str, PlanBase], is_loaded: Callable[[str], bool]) -> tuple[str, list[str]]:
    """Return the file of the plan that a process starts from to have that of `file`, and the differences after it, in order.

    It starts from a plan that it has loaded, or from a full form.
    """
    changes: list[str] = []
    while not is_loaded(file) and (base := bases.get(file)) is not None:
        if base.full_file and not is_loaded(base.file):
            return base.full_file, changes[::-1]
        changes.append(file)
        file = base.file
    return file, changes[::-1]


def _describe_operator(before: Sequence[AnyOperator], operator: AnyOperator, owners: Mapping[int, int]) -> OperatorChange:
    found = Counter(owners.get(id(subscriber), -1) for subscriber in operator.subscribers)
    del found[-1]
    layout = operator.predicate_index.layout
    if not found:
        return OperatorChange(None, layout, (), operator.subscribers)
    base = found.most_common(1)[0][0]
    kept = {id(subscriber) for subscriber in operator.subscribers}
    removed = tuple(place for place, subscriber in enumerate(before[base].subscribers) if id(subscriber) not in kept)
    added = tuple(subscriber for subscriber in operator.subscribers if owners.get(id(subscriber)) != base)
    return OperatorChange(base, layout, removed, added)


@dataclass(frozen=True, slots=True)
class _OperatorContent:
    """What an operator follows from; `operator` is that of the full plan, if nothing of it has changed since."""

    layout: CellLayout
    subscribers: Sequence[Subscriber]
    origin: int | None
    operator: AnyOperator | None

    def change(self, change: OperatorChange) -> _OperatorContent:
        gone = frozenset(change.removed)
        kept = (subscriber for place, subscriber in enumerate(self.subscribers) if place not in gone)
        return _OperatorContent(change.layout, sorted(chain(kept, change.added), key=_sort_key), self.origin, None)


@dataclass(frozen=True, slots=True)
class ChangedPlan:
    """A plan, and for each of its operators the number of the one that it was changed from; None for a new one."""

    plan: StreamPlan
    origins: tuple[int | None, ...]


def apply_changes(plan: StreamPlan, changes: Sequence[PlanChange], table: MemberTable[Subscriber]) -> ChangedPlan:
    """Return the plan after several changes; operators that are the same are one object in both plans."""
    contents = [
        _OperatorContent(operator.predicate_index.layout, operator.subscribers, number, operator)
        for number, operator in enumerate(plan.operators)
    ]
    join_buffers = plan.join_buffers
    for change in changes:
        before, contents = contents, []
        for item in change.operators:
            if isinstance(item, int):
                contents.append(before[item])
            elif item.base is None:
                contents.append(_OperatorContent(item.layout, item.added, None, None))
            else:
                contents.append(before[item.base].change(item))
        join_buffers = tuple(join_buffers[item] if isinstance(item, int) else item for item in change.join_buffers)
    operators = [
        content.operator or build_operator(content.layout, table.find_members(content.subscribers)) for content in contents
    ]
    table.forget_others(subscriber for operator in operators for subscriber in operator.subscribers)
    last = changes[-1]
    changed = assemble_plan(plan.stream, operators, join_buffers, last.columns, last.stats)
    return ChangedPlan(changed, tuple(content.origin for content in contents))

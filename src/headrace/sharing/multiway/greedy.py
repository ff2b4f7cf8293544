"""Strategies without the integer program, at once.

The greedy one begins with the cheapest order of every query and input, counts steps and stores once that several have, and
then goes through them again: is there an order that costs less, given all the others? Then every store of a join that is not
kept is tried: if it were there, would those who can use it save more than it costs?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.sharing.multiway.candidates import STORAGE_WEIGHT, Candidates, Target, candidates, targets
from headrace.sharing.multiway.choice import Choice, strategy_of
from headrace.sharing.multiway.cost import Figures
from headrace.sharing.multiway.relations import Join
from headrace.sharing.multiway.strategy import Solved, Strategy

ROUNDS = 4  # the most times that all orders are looked at again
_AS_MUCH = 1 - 1e-9  # another order has to be cheaper by more than rounding
_ROUNDING = 1e-6  # rows; a change of less is none


def greedy(among: Candidates, rounds: int = ROUNDS) -> Choice:
    """Return a choice that is good, quickly; it costs no more than one with fewer rounds but none."""
    state = _State.of(among)
    state.begin({})
    state.settle(rounds)
    if rounds:
        for store, visitors in state.visitors().items():
            state.try_keeping(store, visitors)
        state.settle(rounds)
    return state.chosen()


def improved(among: Candidates, begin: Mapping[Target, int], rounds: int = ROUNDS) -> Choice:
    """Return a choice that begins with some orders of queries, and with the cheapest of all others, and goes on as above."""
    state = _State.of(among)
    state.begin(begin)
    state.settle(rounds)
    return state.chosen()


def greedily(queries: Sequence[Join], figures: Figures, tasks: int, *, storage_weight: float = STORAGE_WEIGHT) -> Strategy:
    """Return the greedy strategy for queries."""
    among = candidates(queries, figures, tasks, storage_weight=storage_weight)
    return strategy_of(among, greedy(among), Solved("greedy", 1.0))


@dataclass(frozen=True, slots=True)
class _State:
    """The orders taken, and by how many each step, each store and each target is needed; what is changed tells what that costs.

    Targets go by numbers here, as steps and stores do: all this is looked up very often.
    """

    among: Candidates
    targets: tuple[Target, ...]
    endings: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]  # of steps
    inner: tuple[tuple[int, ...], ...]  # for each store, the targets to be taken with it
    queries: tuple[int, ...]
    taken: dict[int, int]
    steps: list[int]
    stores: list[int]
    wanted: list[int]

    @staticmethod
    def of(among: Candidates) -> _State:
        """Return the state in which nothing is taken."""
        numbers = {target: number for number, target in enumerate(among.endings)}
        inner = tuple(tuple(numbers[target] for target in targets(store.relation)) for store in among.stores)
        queries = tuple(numbers[target] for query in among.queries for target in targets(query))
        wanted = [0] * len(numbers)
        for number in queries:
            wanted[number] = 1
        costs = tuple(step.cost for step in among.steps)
        steps, stores = [0] * len(among.steps), [0] * len(among.stores)
        return _State(among, tuple(numbers), tuple(among.endings.values()), costs, inner, queries, {}, steps, stores, wanted)

    def chosen(self) -> Choice:
        """Return the choice."""
        return {self.targets[number]: ending for number, ending in self.taken.items()}

    def begin(self, orders: Mapping[Target, int]) -> None:
        """Take an order for every query and input: the one given, or the one that sends the fewest rows."""
        for number in self.queries:
            if number not in self.taken:  # a query may be a join that another one probes
                given = orders.get(self.targets[number])
                self._take(number, self._cheapest(number) if given is None else given, {})

    def _cheapest(self, target: int) -> int:
        """Return the order that sends the fewest rows, of those that visit inputs only."""

        def sent(ending: int) -> float:
            path = self.among.paths[ending]
            if any(self.inner[self.among.visited[number]] for number in path):
                return math.inf
            return sum(self.costs[number] for number in path)

        return min(self.endings[target], key=sent)

    def visitors(self) -> dict[int, list[int]]:
        """Return for each store of a join the targets that have an order which visits it."""
        found: dict[int, dict[int, None]] = {}
        for target, endings in enumerate(self.endings):
            for ending in endings:
                for number in self.among.paths[ending]:
                    if self.inner[store := self.among.visited[number]]:
                        found.setdefault(store, {})[target] = None
        return {store: list(visitors) for store, visitors in found.items()}

    def settle(self, rounds: int) -> None:
        """Reconsider all orders until none is changed any more, but so many times at most."""
        for _ in range(rounds):
            if not sum(self._reconsider(target) for target in list(self.taken)):
                break

    def try_keeping(self, store: int, visitors: Sequence[int]) -> None:
        """Keep a store if, with all who can use it having their choice again, that costs less."""
        if self.stores[store]:
            return
        taken, before = self.taken.copy(), [counts.copy() for counts in (self.steps, self.stores, self.wanted)]
        change = self._keep(store, {})
        change += sum(self._reconsider(target) for target in visitors)
        change -= self._leave(store, {})
        if change >= -_ROUNDING:
            self.taken.clear()
            self.taken.update(taken)
            self.steps[:], self.stores[:], self.wanted[:] = before

    def _take(self, target: int, ending: int, known: Mapping[int, int]) -> float:
        """Take an order, and orders of joins that it is the first to probe, the known or the best; return what that costs."""
        self.taken[target] = ending
        cost = 0.0
        for number in self.among.paths[ending]:
            if not self.steps[number]:
                cost += self.costs[number]
            self.steps[number] += 1
            cost += self._keep(self.among.visited[number], known)
        return cost

    def _keep(self, store: int, known: Mapping[int, int]) -> float:
        cost = 0.0 if self.stores[store] else self.among.storing[store]
        self.stores[store] += 1
        for inner in self.inner[store]:
            self.wanted[inner] += 1
            if inner not in self.taken:
                cost += self._take(inner, known[inner] if inner in known else self._best(inner)[0], known)
        return cost

    def _drop(self, target: int, dropped: dict[int, int]) -> float:
        """Drop an order, and those of joins that nobody else probes; return what that saves, and note what was dropped."""
        ending = dropped[target] = self.taken.pop(target)
        saved = 0.0
        for number in self.among.paths[ending]:
            self.steps[number] -= 1
            if not self.steps[number]:
                saved += self.costs[number]
            saved += self._leave(self.among.visited[number], dropped)
        return saved

    def _leave(self, store: int, dropped: dict[int, int]) -> float:
        self.stores[store] -= 1
        saved = 0.0 if self.stores[store] else self.among.storing[store]
        for inner in self.inner[store]:
            self.wanted[inner] -= 1
            if not self.wanted[inner]:
                saved += self._drop(inner, dropped)
        return saved

    def _reconsider(self, target: int) -> float:
        """Take the best order for a target, given all others; return by how much that changes the cost, 0 if it is the same."""
        if target not in self.taken or len(self.endings[target]) == 1:
            return 0.0  # the join is not kept any more, or there is no choice
        dropped: dict[int, int] = {}
        saved = self._drop(target, dropped)
        best, cost = self._best(target)
        if best == dropped[target] or cost >= saved * _AS_MUCH:
            self._take(target, dropped[target], dropped)
            return 0.0
        return self._take(target, best, {}) - saved

    def _best(self, target: int) -> tuple[int, float]:
        best, least = self.endings[target][0], math.inf
        for ending in self.endings[target]:
            cost = self._extra(ending, least)
            if cost < least:
                best, least = ending, cost
        return best, least

    def _extra(self, ending: int, most: float) -> float:
        """Return what an order costs besides what is there already; anything from `most` on, if it is as dear as that.

        Joins that it would be the first to probe count with the best order of each of their inputs, one by one.
        """
        total = 0.0
        joins: list[int] = []
        for number in self.among.paths[ending]:
            if not self.steps[number]:
                total += self.costs[number]
            store = self.among.visited[number]
            if not self.stores[store]:
                total += self.among.storing[store]
                joins += [inner for inner in self.inner[store] if inner not in self.taken]
            if total >= most:
                return total
        for inner in joins:
            total += self._best(inner)[1]
            if total >= most:
                return total
        return total

"""Greedy choice of probe orders, without the integer program.

It starts with the cheapest order of every query and input, counts shared steps and stores once, and then reconsiders each order:
is another one cheaper, given all the others? Then it tries every store of a join that is not materialized: would its users save
more than it costs?
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

ROUNDS = 4  # passes over all orders
_AS_MUCH = 1 - 1e-9  # another order must be cheaper by more than rounding errors
_ROUNDING = 1e-6  # rows; smaller changes are rounding errors


def greedy(candidate_orders: Candidates, rounds: int = ROUNDS) -> Choice:
    """Return a good choice quickly; it costs at most as much as the choice with `rounds` 0."""
    state = _State.of(candidate_orders)
    state.begin({})
    state.settle(rounds)
    if rounds:
        for store, visitors in state.visitors().items():
            state.try_keeping(store, visitors)
        state.settle(rounds)
    return state.chosen()


def improved(candidate_orders: Candidates, initial_orders: Mapping[Target, int], rounds: int = ROUNDS) -> Choice:
    """Return the improved choice that starts with given orders of queries, and with the cheapest of all others."""
    state = _State.of(candidate_orders)
    state.begin(initial_orders)
    state.settle(rounds)
    return state.chosen()


def greedily(queries: Sequence[Join], cardinalities: Figures, tasks: int, *, storage_weight: float = STORAGE_WEIGHT) -> Strategy:
    """Return the greedy strategy for queries."""
    candidate_orders = candidates(queries, cardinalities, tasks, storage_weight=storage_weight)
    return strategy_of(candidate_orders, greedy(candidate_orders), Solved("greedy", 1.0))


@dataclass(frozen=True, slots=True)
class _State:
    """The chosen orders, and use counts of each step, store and target; each change returns its cost.

    Targets have numbers here, as steps and stores do, because they are looked up very often.
    """

    among: Candidates
    targets: tuple[Target, ...]
    endings: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]  # of steps
    inner: tuple[tuple[int, ...], ...]  # for each store, the targets that compute its join
    queries: tuple[int, ...]
    taken: dict[int, int]
    steps: list[int]
    stores: list[int]
    wanted: list[int]

    @staticmethod
    def of(candidate_orders: Candidates) -> _State:
        """Return the state without any chosen order."""
        numbers = {target: number for number, target in enumerate(candidate_orders.endings)}
        inner = tuple(tuple(numbers[target] for target in targets(store.relation)) for store in candidate_orders.stores)
        queries = tuple(numbers[target] for query in candidate_orders.queries for target in targets(query))
        wanted = [0] * len(numbers)
        for number in queries:
            wanted[number] = 1
        costs = tuple(step.cost for step in candidate_orders.steps)
        steps, stores = [0] * len(candidate_orders.steps), [0] * len(candidate_orders.stores)
        return _State(
            candidate_orders,
            tuple(numbers),
            tuple(candidate_orders.endings.values()),
            costs,
            inner,
            queries,
            {},
            steps,
            stores,
            wanted,
        )

    def chosen(self) -> Choice:
        """Return the chosen orders as a choice."""
        return {self.targets[number]: ending for number, ending in self.taken.items()}

    def begin(self, initial_orders: Mapping[Target, int]) -> None:
        """Take an order for every query and input: the given one, or the one that sends the fewest rows."""
        for target in self.queries:
            if target not in self.taken:  # a query may be a materialized join of another one
                given = initial_orders.get(self.targets[target])
                self._take(target, self._cheapest(target) if given is None else given, {})

    def _cheapest(self, target: int) -> int:
        """Return the order that sends the fewest rows among those that visit only inputs."""

        def count_sent_rows(ending: int) -> float:
            path = self.among.paths[ending]
            if any(self.inner[self.among.visited[number]] for number in path):
                return math.inf
            return sum(self.costs[number] for number in path)

        return min(self.endings[target], key=count_sent_rows)

    def visitors(self) -> dict[int, list[int]]:
        """Return, for each store of a join, the targets with an order that visits it."""
        visitors_by_store: dict[int, dict[int, None]] = {}
        for target, endings in enumerate(self.endings):
            for ending in endings:
                for number in self.among.paths[ending]:
                    if self.inner[store := self.among.visited[number]]:
                        visitors_by_store.setdefault(store, {})[target] = None
        return {store: list(visitors) for store, visitors in visitors_by_store.items()}

    def settle(self, rounds: int) -> None:
        """Reconsider all orders until none changes, at most `rounds` times."""
        for _ in range(rounds):
            if not sum(self._reconsider(target) for target in list(self.taken)):
                break

    def try_keeping(self, store: int, visitors: Sequence[int]) -> None:
        """Materialize a store if that reduces the cost after all its potential users have reconsidered their orders."""
        if self.stores[store]:
            return
        orders_before, counts_before = self.taken.copy(), [counts.copy() for counts in (self.steps, self.stores, self.wanted)]
        change = self._keep(store, {})
        change += sum(self._reconsider(target) for target in visitors)
        change -= self._leave(store, {})
        if change >= -_ROUNDING:
            self.taken.clear()
            self.taken.update(orders_before)
            self.steps[:], self.stores[:], self.wanted[:] = counts_before

    def _take(self, target: int, ending: int, known_orders: Mapping[int, int]) -> float:
        """Take an order, and the known or best orders of joins that it is the first to probe; return the added cost."""
        self.taken[target] = ending
        cost = 0.0
        for number in self.among.paths[ending]:
            if not self.steps[number]:
                cost += self.costs[number]
            self.steps[number] += 1
            cost += self._keep(self.among.visited[number], known_orders)
        return cost

    def _keep(self, store: int, known_orders: Mapping[int, int]) -> float:
        """Count one more use of a store, and take orders for its join on first use; return the added cost."""
        cost = 0.0 if self.stores[store] else self.among.storing[store]
        self.stores[store] += 1
        for inner in self.inner[store]:
            self.wanted[inner] += 1
            if inner not in self.taken:
                cost += self._take(inner, known_orders[inner] if inner in known_orders else self._best(inner)[0], known_orders)
        return cost

    def _drop(self, target: int, dropped: dict[int, int]) -> float:
        """Drop an order, and those of joins that no other order probes; return the saved cost and record dropped orders."""
        ending = dropped[target] = self.taken.pop(target)
        saved = 0.0
        for number in self.among.paths[ending]:
            self.steps[number] -= 1
            if not self.steps[number]:
                saved += self.costs[number]
            saved += self._leave(self.among.visited[number], dropped)
        return saved

    def _leave(self, store: int, dropped: dict[int, int]) -> float:
        """Count one use less of a store, and drop the orders of its join after the last use; return the saved cost."""
        self.stores[store] -= 1
        saved = 0.0 if self.stores[store] else self.among.storing[store]
        for inner in self.inner[store]:
            self.wanted[inner] -= 1
            if not self.wanted[inner]:
                saved += self._drop(inner, dropped)
        return saved

    def _reconsider(self, target: int) -> float:
        """Take the best order for a target, given all others; return the change of the cost, 0 without a change."""
        if target not in self.taken or len(self.endings[target]) == 1:
            return 0.0  # no longer materialized, or without alternatives
        dropped: dict[int, int] = {}
        saved = self._drop(target, dropped)
        best, cost = self._best(target)
        if best == dropped[target] or cost >= saved * _AS_MUCH:
            self._take(target, dropped[target], dropped)
            return 0.0
        return self._take(target, best, {}) - saved

    def _best(self, target: int) -> tuple[int, float]:
        """Return the order with the least marginal cost, and that cost."""
        best, least = self.endings[target][0], math.inf
        for ending in self.endings[target]:
            cost = self._extra(ending, least)
            if cost < least:
                best, least = ending, cost
        return best, least

    def _extra(self, ending: int, limit: float) -> float:
        """Return the marginal cost of an order; the result may be any value from `limit` on if it is at least that.

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
            if total >= limit:
                return total
        for inner in joins:
            total += self._best(inner)[1]
            if total >= limit:
                return total
        return total

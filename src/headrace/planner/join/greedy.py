"""Greedy choice of probe orders, without the integer program.

It starts with the cheapest order of every query and input, counts shared steps and stores once, and then reconsiders each order:
is another one cheaper, given all the others? Then it tries every store of a join that is not materialized: would its users save
more than it costs? It stops where it is after `MAX_COMPARISONS` orders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.planner.join.candidates import (
    CandidateOrders,
    OrderChoice,
    OrderTarget,
    list_targets,
)

MAX_ROUNDS = 4  # passes over all orders
MAX_COMPARISONS = 300_000  # orders whose cost is estimated
_ROUNDING_FACTOR = 1 - 1e-9  # another order must be cheaper by more than rounding errors
_MIN_CHANGE = 1e-6  # rows; smaller changes are rounding errors


def choose_greedily(candidate_orders: CandidateOrders, rounds: int = MAX_ROUNDS) -> OrderChoice:
    """Return a good choice quickly; it costs at most as much as the choice with `rounds` 0."""
    state = _GreedyState.from_candidates(candidate_orders)
    state.take_initial_orders({})
    state.improve_until_stable(rounds)
    if rounds:
        for store, visitors in state.find_visitors().items():
            state.try_materializing(store, visitors)
        state.improve_until_stable(rounds)
    return state.to_choice()


def improve_choice(
    candidate_orders: CandidateOrders, initial_orders: Mapping[OrderTarget, int], rounds: int = MAX_ROUNDS
) -> OrderChoice:
    """Return the improved choice that starts with given orders of queries, and with the cheapest of all others."""
    state = _GreedyState.from_candidates(candidate_orders)
    state.take_initial_orders(initial_orders)
    state.improve_until_stable(rounds)
    return state.to_choice()


@dataclass(frozen=True, slots=True)
class _GreedyState:
    """The chosen orders, and use counts of each step, store and target; each change returns its cost.

    `comparisons` counts the orders whose cost was estimated.

    Targets have numbers here, as steps and stores do, because they are looked up very often.
    """

    candidates: CandidateOrders
    targets: tuple[OrderTarget, ...]
    last_steps: tuple[tuple[int, ...], ...]
    step_costs: tuple[float, ...]  # of steps
    store_targets: tuple[tuple[int, ...], ...]  # for each store, the targets that compute its join
    query_targets: tuple[int, ...]
    chosen_orders: dict[int, int]
    step_uses: list[int]
    store_uses: list[int]
    target_uses: list[int]
    hop_costs: tuple[float, ...]  # of a step of the orders of each target
    comparisons: list[int] = field(default_factory=lambda: [0])

    @property
    def is_exhausted(self) -> bool:
        """Whether as many orders were compared as the effort allows."""
        return self.comparisons[0] >= MAX_COMPARISONS

    @staticmethod
    def from_candidates(candidate_orders: CandidateOrders) -> _GreedyState:
        """Return the state without any chosen order."""
        numbers = {target: number for number, target in enumerate(candidate_orders.last_steps)}
        inner = tuple(tuple(numbers[target] for target in list_targets(store.relation)) for store in candidate_orders.stores)
        queries = tuple(numbers[target] for query in candidate_orders.queries for target in list_targets(query))
        wanted = [0] * len(numbers)
        for number in queries:
            wanted[number] = 1
        costs = tuple(step.cost for step in candidate_orders.steps)
        steps, stores = [0] * len(candidate_orders.steps), [0] * len(candidate_orders.stores)
        return _GreedyState(
            candidate_orders,
            tuple(numbers),
            tuple(candidate_orders.last_steps.values()),
            costs,
            inner,
            queries,
            {},
            steps,
            stores,
            wanted,
            tuple(candidate_orders.hop_costs.get(target, 0.0) for target in numbers),
        )

    def to_choice(self) -> OrderChoice:
        """Return the chosen orders as a choice."""
        return {self.targets[number]: ending for number, ending in self.chosen_orders.items()}

    def take_initial_orders(self, initial_orders: Mapping[OrderTarget, int]) -> None:
        """Take an order for every query and input: the given one, or the one that sends the fewest rows."""
        for target in self.query_targets:
            if target not in self.chosen_orders:  # a query may be a materialized join of another one
                given = initial_orders.get(self.targets[target])
                self._take_order(target, self._find_cheapest_input_order(target) if given is None else given, {})

    def _find_cheapest_input_order(self, target: int) -> int:
        """Return the order that sends the fewest rows among those that visit only inputs."""

        def count_sent_rows(ending: int) -> float:
            path = self.candidates.paths[ending]
            if any(self.store_targets[self.candidates.step_stores[number]] for number in path):
                return math.inf
            return sum(self.step_costs[number] for number in path)

        return min(self.last_steps[target], key=count_sent_rows)

    def find_visitors(self) -> dict[int, list[int]]:
        """Return, for each store of a join, the targets with an order that visits it."""
        visitors_by_store: dict[int, dict[int, None]] = {}
        for target, endings in enumerate(self.last_steps):
            for ending in endings:
                for number in self.candidates.paths[ending]:
                    if self.store_targets[store := self.candidates.step_stores[number]]:
                        visitors_by_store.setdefault(store, {})[target] = None
        return {store: list(visitors) for store, visitors in visitors_by_store.items()}

    def improve_until_stable(self, rounds: int) -> None:
        """Reconsider all orders until none changes, at most `rounds` times."""
        for _ in range(rounds):
            if not sum(self._reconsider_target(target) for target in list(self.chosen_orders)) or self.is_exhausted:
                break

    def try_materializing(self, store: int, visitors: Sequence[int]) -> None:
        """Materialize a store if that reduces the cost after all its potential users have reconsidered their orders."""
        if self.store_uses[store] or self.is_exhausted:
            return
        orders_before, counts_before = (
            self.chosen_orders.copy(),
            [counts.copy() for counts in (self.step_uses, self.store_uses, self.target_uses)],
        )
        change = self._acquire_store(store, {})
        change += sum(self._reconsider_target(target) for target in visitors)
        change -= self._release_store(store, {})
        if change >= -_MIN_CHANGE:
            self.chosen_orders.clear()
            self.chosen_orders.update(orders_before)
            self.step_uses[:], self.store_uses[:], self.target_uses[:] = counts_before

    def _take_order(self, target: int, ending: int, known_orders: Mapping[int, int]) -> float:
        """Take an order, and the known or best orders of joins that it is the first to probe; return the added cost."""
        self.chosen_orders[target] = ending
        cost = self.hop_costs[target] * len(self.candidates.paths[ending])
        for number in self.candidates.paths[ending]:
            if not self.step_uses[number]:
                cost += self.step_costs[number]
            self.step_uses[number] += 1
            cost += self._acquire_store(self.candidates.step_stores[number], known_orders)
        return cost

    def _acquire_store(self, store: int, known_orders: Mapping[int, int]) -> float:
        """Count one more use of a store, and take orders for its join on first use; return the added cost."""
        cost = 0.0 if self.store_uses[store] else self.candidates.storage_costs[store]
        self.store_uses[store] += 1
        for inner in self.store_targets[store]:
            self.target_uses[inner] += 1
            if inner not in self.chosen_orders:
                cost += self._take_order(
                    inner, known_orders[inner] if inner in known_orders else self._find_best_order(inner)[0], known_orders
                )
        return cost

    def _drop_order(self, target: int, dropped: dict[int, int]) -> float:
        """Drop an order, and those of joins that no other order probes; return the saved cost and record dropped orders."""
        ending = dropped[target] = self.chosen_orders.pop(target)
        saved = self.hop_costs[target] * len(self.candidates.paths[ending])
        for number in self.candidates.paths[ending]:
            self.step_uses[number] -= 1
            if not self.step_uses[number]:
                saved += self.step_costs[number]
            saved += self._release_store(self.candidates.step_stores[number], dropped)
        return saved

    def _release_store(self, store: int, dropped: dict[int, int]) -> float:
        """Count one use less of a store, and drop the orders of its join after the last use; return the saved cost."""
        self.store_uses[store] -= 1
        saved = 0.0 if self.store_uses[store] else self.candidates.storage_costs[store]
        for inner in self.store_targets[store]:
            self.target_uses[inner] -= 1
            if not self.target_uses[inner]:
                saved += self._drop_order(inner, dropped)
        return saved

    def _reconsider_target(self, target: int) -> float:
        """Take the best order for a target, given all others; return the change of the cost, 0 without a change."""
        if target not in self.chosen_orders or len(self.last_steps[target]) == 1 or self.is_exhausted:
            return 0.0  # no longer materialized, without alternatives, or without effort left
        dropped: dict[int, int] = {}
        saved = self._drop_order(target, dropped)
        best, cost = self._find_best_order(target)
        if best == dropped[target] or cost >= saved * _ROUNDING_FACTOR:
            self._take_order(target, dropped[target], dropped)
            return 0.0
        return self._take_order(target, best, {}) - saved

    def _find_best_order(self, target: int) -> tuple[int, float]:
        """Return the order with the least marginal cost, and that cost."""
        best, least = self.last_steps[target][0], math.inf
        for ending in self.last_steps[target]:
            cost = self._estimate_marginal_cost(target, ending, least)
            if cost < least:
                best, least = ending, cost
        return best, least

    def _estimate_marginal_cost(self, target: int, ending: int, limit: float) -> float:
        """Return the marginal cost of an order; the result may be any value from `limit` on if it is at least that.

        Joins that it would be the first to probe count with the best order of each of their inputs, one by one.
        """
        self.comparisons[0] += 1
        total = self.hop_costs[target] * len(self.candidates.paths[ending])
        joins: list[int] = []
        for number in self.candidates.paths[ending]:
            if not self.step_uses[number]:
                total += self.step_costs[number]
            store = self.candidates.step_stores[number]
            if not self.store_uses[store]:
                total += self.candidates.storage_costs[store]
                joins += [inner for inner in self.store_targets[store] if inner not in self.chosen_orders]
            if total >= limit:
                return total
        for inner in joins:
            total += self._find_best_order(inner)[1]
            if total >= limit:
                return total
        return total

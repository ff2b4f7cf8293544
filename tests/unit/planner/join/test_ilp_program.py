"""The integer program, row by row, for the queries of the worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from two_queries import FIGURES, Q1, Q2, labels

from headrace.planner.join.candidates import generate_candidates, list_targets, price_choice
from headrace.planner.join.greedy import choose_greedily
from headrace.planner.join.ilp import build_program


def name(what, among, column):
    """x R: S[b] T[c]   y R: S[b]   w S[b]"""
    if column < len(what.order_variables):
        (_, start), ending = what.order_variables[column]
        return f"x {start}: {labels(among.get_order(ending).stores)}"
    column -= len(what.order_variables)
    if column < len(what.step_variables):
        number = what.step_variables[column]
        return f"y {among.steps[number].start}: {labels(among.get_order(number).stores)}"
    return f"w {labels([among.stores[what.store_variables[column - len(what.step_variables)]]])}"


def written(what, among):
    """Return rows as texts: 'x A − y B ≥ 0'."""
    found = []
    for row in what.iter_constraints():
        terms = sorted(("−" if coefficient < 0 else "+") + name(what, among, column) for coefficient, column in row.terms)
        found.append((" ".join(terms), "= 1" if row.upper == 1 else "≥ 0"))
        assert (row.lower, row.upper) in ((1, 1), (0, math.inf))
        assert {abs(coefficient) for coefficient, _ in row.terms} == {1}
    return found


@pytest.fixture(scope="module")
def example():
    among = generate_candidates([Q1, Q2], FIGURES, 4, prune=False)
    what = build_program(among)
    return among, what, written(what, among)


def test_one_order_is_taken_for_each_query_and_input(example):
    _, _, rows = example
    assert sum(bound == "= 1" for _, bound in rows) == 6
    assert ("+x R: ST[b] +x R: ST[d] +x R: S[b] T[c] +x R: S[b] T[d] +x R: S[c] T[c] +x R: S[c] T[d]", "= 1") in rows


def test_a_join_that_is_kept_is_made_from_all_its_inputs(example):
    _, _, rows = example
    for by in "bd":
        assert (f"+x S: T[c] +x S: T[d] −w ST[{by}]", "≥ 0") in rows
        assert (f"+x T: S[b] +x T: S[c] −w ST[{by}]", "≥ 0") in rows


def test_orders_hold_their_steps(example):
    _, _, rows = example
    assert ("+y R: S[b] −x R: S[b] T[c] −x R: S[b] T[d]", "≥ 0") in rows  # σ7 for σ1 and σ3
    assert ("+y R: S[c] −x R: S[c] T[c] −x R: S[c] T[d]", "≥ 0") in rows  # σ8 for σ2 and σ4
    assert ("+y R: S[b] −x R: S[b]", "≥ 0") in rows  # the same variable for the order of R⋈S
    assert len([row for row, _ in rows if "y S: T[c]" in row]) == 3  # q1, q2 and S⋈T hold one variable


def test_orders_hold_their_stores(example):
    _, _, rows = example
    assert ("+w S[b] −x R: S[b] T[c] −x R: S[b] T[d]", "≥ 0") in rows
    assert ("+w ST[b] −x R: ST[b]", "≥ 0") in rows


def test_costs_are_those_of_steps_and_stores(example):
    among, what, _ = example
    costs = {name(what, among, column): cost for column, cost in enumerate(what.costs)}
    assert costs["y R: S[b]"] == 100  # told
    assert costs["y R: S[c]"] == 400  # to all partitions
    assert costs["x R: S[b] T[c]"] == 50  # R⋈S to T: nobody else makes this step, so x stands for it
    assert costs["x R: S[b] T[d]"] == 200
    assert costs["x R: S[b]"] == 0  # has a step of its own
    assert costs["x R: ST[b]"] == 100
    assert costs["w S[b]"] == 100
    assert costs["w ST[d]"] == pytest.approx(150)


def test_sizes(example):
    among, what, _ = example
    assert what.variable_count == len(what.order_variables) + len(what.step_variables) + len(what.store_variables)
    assert len(what.order_variables) == sum(map(len, among.last_steps.values()))
    assert set(what.step_variables) == {step.previous for step in among.steps} - {None}
    assert what.row_starts[-1] == len(what.columns) == len(what.coefficients)


def test_a_choice_is_a_solution_of_the_same_cost(example):
    among, what, _ = example
    choice = choose_greedily(among)
    values = what.encode_choice(among, choice)
    assert what.costs @ values == pytest.approx(sum(price_choice(among, choice)))
    for row in what.iter_constraints():
        assert row.lower <= sum(coefficient * values[column] for coefficient, column in row.terms) <= row.upper
    assert what.decode_choice(values) == choice


def test_stores_of_inputs_that_cost_nothing_need_no_variable():
    among = generate_candidates([Q1, Q2], FIGURES, 4, prune=False, storage_weight=0.0)
    what = build_program(among)
    assert all(not among.stores[number].relation.is_input for number in what.store_variables)
    assert np.all(what.costs[len(what.order_variables) + len(what.step_variables) :] == 0)


def test_a_query_that_is_part_of_another_is_made_anyway():
    part = Q1.subgraph("ST")
    among = generate_candidates([Q1, part], FIGURES, 4)
    rows = written(build_program(among), among)
    assert sum(bound == "= 1" for _, bound in rows) == 5
    assert not [row for row, _ in rows if "−w ST" in row]
    assert all(target in among.last_steps for target in list_targets(part))

"""The integer program: its constraints for the queries of the worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from two_queries import FIGURES, Q1, Q2, labels

from headrace.planner.join.candidates import generate_candidates, list_targets, price_choice
from headrace.planner.join.greedy import choose_greedily
from headrace.planner.join.ilp import build_program


def format_variable(program, among, column):
    """x R: S[b] T[c]   y R: S[b]   w S[b]"""
    if column < len(program.order_variables):
        (_, start), ending = program.order_variables[column]
        return f"x {start}: {labels(among.get_order(ending).stores)}"
    column -= len(program.order_variables)
    if column < len(program.step_variables):
        number = program.step_variables[column]
        return f"y {among.steps[number].start}: {labels(among.get_order(number).stores)}"
    return f"w {labels([among.stores[program.store_variables[column - len(program.step_variables)]]])}"


def format_constraints(program, among):
    """Return constraints as texts: 'x A − y B ≥ 0'."""
    texts = []
    for row in program.iter_constraints():
        terms = sorted(
            ("−" if coefficient < 0 else "+") + format_variable(program, among, column) for coefficient, column in row.terms
        )
        texts.append((" ".join(terms), "= 1" if row.upper == 1 else "≥ 0"))
        assert (row.lower, row.upper) in ((1, 1), (0, math.inf))
        assert {abs(coefficient) for coefficient, _ in row.terms} == {1}
    return texts


@pytest.fixture(scope="module")
def example():
    among = generate_candidates([Q1, Q2], FIGURES, 4, prune=False)
    program = build_program(among)
    return among, program, format_constraints(program, among)


def test_exactly_one_order_is_chosen_per_query_and_input(example):
    _, _, rows = example
    assert sum(bound == "= 1" for _, bound in rows) == 6
    assert ("+x R: ST[b] +x R: ST[d] +x R: S[b] T[c] +x R: S[b] T[d] +x R: S[c] T[c] +x R: S[c] T[d]", "= 1") in rows


def test_a_materialized_join_has_an_order_for_each_of_its_inputs(example):
    _, _, rows = example
    for by in "bd":
        assert (f"+x S: T[c] +x S: T[d] −w ST[{by}]", "≥ 0") in rows
        assert (f"+x T: S[b] +x T: S[c] −w ST[{by}]", "≥ 0") in rows


def test_orders_require_their_steps(example):
    _, _, rows = example
    assert ("+y R: S[b] −x R: S[b] T[c] −x R: S[b] T[d]", "≥ 0") in rows  # σ7 for σ1 and σ3
    assert ("+y R: S[c] −x R: S[c] T[c] −x R: S[c] T[d]", "≥ 0") in rows  # σ8 for σ2 and σ4
    assert ("+y R: S[b] −x R: S[b]", "≥ 0") in rows  # the order of R⋈S uses the same variable
    assert len([row for row, _ in rows if "y S: T[c]" in row]) == 3  # q1, q2 and S⋈T use one variable


def test_orders_require_their_stores(example):
    _, _, rows = example
    assert ("+w S[b] −x R: S[b] T[c] −x R: S[b] T[d]", "≥ 0") in rows
    assert ("+w ST[b] −x R: ST[b]", "≥ 0") in rows


def test_costs_are_the_costs_of_steps_and_stores(example):
    among, program, _ = example
    costs = {format_variable(program, among, column): cost for column, cost in enumerate(program.costs)}
    assert costs["y R: S[b]"] == 100  # to one partition
    assert costs["y R: S[c]"] == 400  # to all partitions
    assert costs["x R: S[b] T[c]"] == 50  # R⋈S to T: no other order has this step, so x has its cost
    assert costs["x R: S[b] T[d]"] == 200
    assert costs["x R: S[b]"] == 0  # the step has its own variable
    assert costs["x R: ST[b]"] == 100
    assert costs["w S[b]"] == 100
    assert costs["w ST[d]"] == pytest.approx(150)


def test_the_program_has_a_variable_per_order_step_and_store(example):
    among, program, _ = example
    assert program.variable_count == len(program.order_variables) + len(program.step_variables) + len(program.store_variables)
    assert len(program.order_variables) == sum(map(len, among.last_steps.values()))
    assert set(program.step_variables) == {step.previous for step in among.steps} - {None}
    assert program.row_starts[-1] == len(program.columns) == len(program.coefficients)


def test_an_encoded_choice_satisfies_the_constraints_at_the_same_cost(example):
    among, program, _ = example
    choice = choose_greedily(among)
    values = program.encode_choice(among, choice)
    assert program.costs @ values == pytest.approx(sum(price_choice(among, choice)))
    for row in program.iter_constraints():
        assert row.lower <= sum(coefficient * values[column] for coefficient, column in row.terms) <= row.upper
    assert program.decode_choice(values) == choice


def test_input_stores_without_cost_need_no_variable():
    among = generate_candidates([Q1, Q2], FIGURES, 4, prune=False, storage_weight=0.0)
    program = build_program(among)
    assert all(not among.stores[number].relation.is_input for number in program.store_variables)
    assert np.all(program.costs[len(program.order_variables) + len(program.step_variables) :] == 0)


def test_a_query_that_is_part_of_another_needs_no_store_constraint():
    part = Q1.subgraph("ST")
    among = generate_candidates([Q1, part], FIGURES, 4)
    rows = format_constraints(build_program(among), among)
    assert sum(bound == "= 1" for _, bound in rows) == 5
    assert not [row for row, _ in rows if "−w ST" in row]
    assert all(target in among.last_steps for target in list_targets(part))

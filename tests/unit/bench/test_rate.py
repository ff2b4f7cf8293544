"""Rate scripts: row counts over time, and the due time of each row."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.bench.driver.rates import RateScript, RateSegment
from headrace.errors import HeadraceError

RATES = st.floats(0, 1e6) | st.just(0.0)
PIECES = st.builds(RateSegment, st.floats(0.01, 20), RATES, RATES)
SCRIPTS = st.builds(RateScript, st.lists(PIECES, min_size=1, max_size=5).map(tuple), st.booleans())


def test_a_constant_rate_has_evenly_spaced_rows():
    script = RateScript.constant(4)
    assert [script.count_rows_at(t) for t in (-1, 0, 0.2, 0.25, 1, 2.6)] == [0, 0, 0, 1, 4, 10]
    assert script.due_times(np.arange(3)).tolist() == [0.25, 0.5, 0.75]


# rows/s    10 ──────┐        ┌── 20 …
#           0        └────────┘
# seconds   0        1        3


def test_steps_can_include_a_pause():
    script = RateScript.steps([(1, 10), (2, 0), (1, 20)])
    assert [script.count_rows_at(t) for t in (1, 2, 3, 3.5, 4, 10)] == [10, 10, 10, 20, 30, 150]
    assert script.due_times(np.array([8, 9, 10, 29, 30])) == pytest.approx([0.9, 1.0, 3.05, 4.0, 4.05])


# rows/s             ┌ 50 ┐          ┌ 50 ┐
#           10 ──────┘    └── 10 ────┘    └─ …
# seconds   0        4    5          9    10


def test_spikes_repeat():
    script = RateScript.spikes(10, 50, every=5, length=1)
    assert [script.count_rows_at(t) for t in (4, 5, 9, 10, 49, 50)] == [40, 90, 130, 180, 850, 900]
    assert script.due_times(np.array([39, 89, 99, 899])) == pytest.approx([4, 5, 6, 50])


def test_a_ramp_rises_linearly_and_holds_the_last_rate():
    script = RateScript.ramp(0, 100, 10)
    assert [script.count_rows_at(t) for t in (1, 5, 10, 11)] == [5, 125, 500, 600]
    assert script.due_times(np.array([4, 124, 499, 599])) == pytest.approx([1, 5, 10, 11])


@pytest.mark.parametrize("script", [RateScript.ramp(10, 0, 2), RateScript((RateSegment(1, 0, 0),), repeat=True)])
def test_rows_that_are_never_due_have_infinite_time(script):
    assert script.due_times(np.array([11])).tolist() == [math.inf]


@given(SCRIPTS, st.floats(0, 100))
@example(RateScript((RateSegment(1.0, 0.0, 2.0), RateSegment(1.0, 0.0, 2.0)), repeat=True), 3.0)  # more than one repetition
def test_due_times_and_counts_agree(script, seconds):
    """A row is counted right after its due time; due times never decrease."""
    count = min(script.count_rows_at(seconds), 10_000)
    times = script.due_times(np.arange(count))
    assert np.all(np.diff(times) >= 0)
    assert np.all(times <= seconds + 1e-6)
    assert np.all(script.count_rows(times + 1e-6) >= np.arange(count) + 1)


@given(SCRIPTS, st.floats(0.1, 10))
def test_scale_multiplies_the_row_count(script, factor):
    assert script.scale(factor).count_rows_at(50) == pytest.approx(script.count_rows_at(50) * factor, abs=factor + 1)


@given(SCRIPTS)
def test_a_script_round_trips_through_json(script):
    assert RateScript.from_json(json.loads(json.dumps(script.to_json()))) == script


@pytest.mark.parametrize(
    ("value", "script"),
    [
        (5, RateScript.constant(5)),
        ({"kind": "constant", "rate": 5}, RateScript.constant(5)),
        ({"kind": "steps", "steps": [[1, 2], [3, 4]]}, RateScript.steps([(1, 2), (3, 4)])),
        ({"kind": "spikes", "base": 1, "peak": 2, "every": 9, "length": 3}, RateScript.spikes(1, 2, 9, 3)),
        ({"kind": "ramp", "first": 1, "last": 2, "seconds": 3}, RateScript.ramp(1, 2, 3)),
    ],
)
def test_scripts_of_scenario_files_are_parsed(value, script):
    assert RateScript.parse(value) == script


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "waves"}, "kind 'waves' is unknown\ndetail: kinds: constant, steps, spikes, ramp"),
        ({"rate": 5}, "kind 'None'"),
        ({"kind": "ramp", "first": 1}, "needs: first, last, seconds\ndetail: given: first"),
        ({"kind": "constant", "rate": -5}, "from -5 to -5 rows/s"),
        ({"kind": "constant", "rate": "x"}, "is invalid"),
        ({"kind": "steps", "steps": []}, "no pieces"),
        ({"kind": "steps", "steps": [[0, 5]]}, "for 0 seconds"),
        ({"kind": "steps", "steps": [5]}, "is invalid"),
        ({"kind": "spikes", "base": 1, "peak": 2, "every": 3, "length": 3}, "must end before the next"),
    ],
)
def test_invalid_scripts_are_refused(value, message):
    with pytest.raises(HeadraceError, match=message):
        RateScript.parse(value)


@pytest.mark.parametrize("value", [{}, {"pieces": [[1, 2]]}, {"pieces": 3}, [], {"pieces": [["x", 1, 2]]}])
def test_invalid_json_scripts_are_refused(value):
    with pytest.raises(HeadraceError, match="is invalid"):
        RateScript.from_json(value)

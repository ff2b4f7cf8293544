"""Tests of `assert_same_rows`, which other tests use to compare results."""

import math
from decimal import Decimal

import pytest

from support.compare import assert_same_rows


def test_rows_are_compared_as_a_multiset():
    assert_same_rows([{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}])
    with pytest.raises(AssertionError, match="missing: a=1"):
        assert_same_rows([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 1}])


def test_floats_are_compared_with_a_tolerance_and_nan_equals_nan():
    assert_same_rows([{"a": 1.0 + 1e-12}, {"a": math.nan}], [{"a": 1.0}, {"a": math.nan}])
    assert_same_rows([{"a": 1.5}], [{"a": Decimal("1.5")}])
    with pytest.raises(AssertionError):
        assert_same_rows([{"a": 1.0 + 1e-6}], [{"a": 1.0}])


@pytest.mark.parametrize(("left", "right"), [(None, 0), (1, True), ("1", 1), (1.0, None), ({}, {"b": 1})])
def test_values_of_different_types_differ(left, right):
    with pytest.raises(AssertionError):
        assert_same_rows([{"a": left}], [{"a": right}])


def test_the_message_is_truncated():
    with pytest.raises(AssertionError, match="and 90 more"):
        assert_same_rows([{"a": n} for n in range(100)], [])

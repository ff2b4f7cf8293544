"""`scripts/measure-soak`: slopes with their errors, and what the run samples."""

from __future__ import annotations

import math

import pytest

from support.script_modules import load_script

soak = load_script("measure-soak")
fit_slope = soak.fit_slope


def test_a_straight_line_has_its_slope_and_no_error():
    slope = fit_slope([1000, 2000, 3000, 4000], [10.0, 12.0, 14.0, 16.0])
    assert (slope.mean, slope.growth) == pytest.approx((13.0, 2.0))
    assert slope.error == pytest.approx(0.0, abs=1e-9)
    assert slope.share == pytest.approx(2 / 13)
    assert slope.trend == "growing"


def test_the_standard_error_is_that_of_the_textbook():
    """x = 1 … 5, y = 1 3 2 5 4: Sxx = 10, Sxy = 8, residual sum of squares 3.6, error √(3.6 / 3 / 10)."""
    slope = fit_slope([1000, 2000, 3000, 4000, 5000], [1, 3, 2, 5, 4])
    assert slope.growth == pytest.approx(0.8)
    assert slope.error == pytest.approx(math.sqrt(0.12))
    assert slope.trend == "flat"  # 2.3 errors


@pytest.mark.parametrize(
    ("values", "trend"),
    [
        ([100.0, 100.0, 100.0, 100.0], "flat"),
        ([100.0, 100.9, 101.8, 102.7], "flat"),  # exact, but less than 1 % of the mean
        ([100.0, 102.0, 104.0, 106.0], "growing"),
        ([106.0, 104.0, 102.0, 100.0], "falling"),
        ([100.0, 140.0, 90.0, 130.0], "flat"),  # 4 %, but within the noise
        ([0.0, 0.0, 0.0, 0.0], "flat"),
        ([-3.0, -1.0, 1.0, 3.0], "growing"),  # the mean is zero
    ],
)
def test_a_trend_exceeds_both_bounds(values, trend):
    assert fit_slope([1000, 2000, 3000, 4000], values).trend == trend


@pytest.mark.parametrize(("step", "code"), [(5.0, 1), (0.0, 0), (-5.0, 0)])
def test_only_growth_is_a_failure(step, code, monkeypatch, capsys):
    samples = [soak.SoakSample(1000 * i, *[100.0 + step * i] * 6) for i in range(soak.SAMPLES // 10)]
    monkeypatch.setattr(soak, "run_soak", lambda *_: iter(samples))
    monkeypatch.setattr("sys.argv", ["measure-soak"])
    assert soak.main() == code
    assert ("falling" in capsys.readouterr().out) is (step < 0)


def test_two_samples_have_no_error():
    with pytest.raises(ValueError, match="2 samples are too few"):
        fit_slope([1, 2], [1.0, 2.0])


def test_slopes_are_those_of_the_second_half():
    """Growth that ends, such as that of caches, is no leak."""
    values = [10, 20, 30, 40, 50, 50, 50, 50]
    samples = [soak.SoakSample(1000 * i, value, value, value, value, value, value) for i, value in enumerate(values)]
    assert all(slope.growth == 0 for slope in soak.fit_slopes(samples).values())


def test_the_soak_samples_every_measure_and_clears_its_file_sink(tmp_path):
    samples = []
    for sample in soak.run_soak(tmp_path, batches=12, interval=4, seconds=600):
        samples.append(sample)
        assert not list((tmp_path / "sink").glob("*.jsonl"))
    assert [sample.batch for sample in samples] == [4, 8, 12]
    assert all(getattr(sample, name) > 0 for sample in samples for name in soak.MEASURES)


def test_the_soak_ends_with_the_sample_after_its_time(tmp_path):
    assert [sample.batch for sample in soak.run_soak(tmp_path, batches=12, interval=4, seconds=0)] == [4]


def test_a_failed_query_ends_the_soak(tmp_path):
    run = soak.SoakSession(tmp_path)
    with run.session:
        run.session.add("SELECT n FROM a", name="beyond", budget={"output_rows": 1})
        with pytest.raises(RuntimeError, match=r"queries failed in batch 0: .*output_rows"):
            run.run_batch(0)

"""`scripts/measure-theta`: every part with few rows; all spellings have the same results, and bands together those of apart."""

from __future__ import annotations

from typing import Any

import pytest

from support.script_modules import load_script

theta = load_script("measure-theta")


def test_all_spellings_of_a_band_emit_the_same_results(capsys: pytest.CaptureFixture[str]) -> None:
    figures = theta.measure_spellings(30, 4)
    for window in ("SLIDING", "TUMBLE"):
        results = {figure.results for figure in figures if figure.window == window and figure.what != theta.EQUALITY}
        assert len(results) == 1
        assert results != {0}
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(theta.SPELLINGS) == len(figures)


def test_bands_together_emit_the_results_of_bands_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theta, "BAND_COUNTS", (2, 5))
    figures = theta.measure_shared(20, 4)
    assert [figure.what for figure in figures[:2]] == ["2 bands together", "2 bands apart"]
    assert [figure.results for figure in figures[::2]] == [figure.results for figure in figures[1::2]]
    assert figures[-1].results > 0


def test_loops_and_growth_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(
        theta.sys, "argv", ["measure-theta", "loops", "--rows", "40", "--batches", "4", "--json", str(tmp_path / "f")]
    )
    theta.main()
    assert (tmp_path / "f").read_text().count('"loops"') == 2 * len(theta.LOOPS)

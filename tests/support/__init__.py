"""Helpers for tests: random scenarios, the oracle's run of a scenario, DuckDB as a second oracle, comparison of results."""

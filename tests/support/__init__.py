"""What tests share: random scenarios, the oracle's run of one, DuckDB as a second opinion, comparison of results."""

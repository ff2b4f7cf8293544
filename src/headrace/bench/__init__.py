"""The benchmark: measure headrace beside other engines on the same rows, in the same run, on the same machine.

`driver` generates rows and serves them, `measure` collects results and judges rates, `scenarios` describe measurements, `systems`
adapt the engines under test, `run` puts them together, `report` draws the results. Results are compared as ratios, never as
absolute numbers of different runs. Rows and queries are generated from a seed; each system runs in its own process and is timed
from outside, through its public interface. A run that fails gives a reason and no number.
"""

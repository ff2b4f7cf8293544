"""Run the simulation: `python -m simulation --seeds 1-200`, with `src` and `tests` in PYTHONPATH; `make simulate` does it.

A seed that breaks a promise is printed with its trace, and as the smallest schedule found that breaks the same promise.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

from simulation.run import Outcome, run_schedule
from simulation.shrink import shrink_schedule
from simulation.workload import STEPS, draw_schedule

_SHOWN_FAILURES = 5
_CHUNK = 20


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds of the command line; return 1 if one of them breaks a promise."""
    options = _parse_arguments(arguments)
    logging.disable(logging.WARNING)  # a full disk is part of the schedule
    begun = time.perf_counter()
    outcomes: list[Outcome] = []
    failures: list[Outcome] = []
    for outcome in _run_seeds(options):
        outcomes.append(replace(outcome, trace=()))
        if outcome.kind:
            failures.append(outcome)
            print(f"seed {outcome.seed}: {outcome.kind}", flush=True)
        if len(outcomes) % 500 == 0 and len(options.seeds) > 500:
            print(f"{len(outcomes):,} of {len(options.seeds):,} seeds, {len(failures)} violations", file=sys.stderr, flush=True)
        if len(failures) >= options.max_failures:
            break
    _print_summary(outcomes, failures, time.perf_counter() - begun)
    for outcome in _pick_examples(failures):
        _print_failure(outcome, options)
    return 1 if failures else 0


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=_parse_seeds, default=range(1, 201), help="one seed, a range 1-200, or a count with 'n='")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a schedule")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of a failing seed")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="do not search for a smaller schedule")
    parser.add_argument("--max-failures", type=int, default=1_000_000, help="stop after so many violations")
    return parser.parse_args(arguments)


def _parse_seeds(text: str) -> range:
    """Parse `7`, `1-200` or `n=200`."""
    if text.startswith("n="):
        return range(1, int(text[2:]) + 1)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _run_seeds(options: argparse.Namespace) -> Iterator[Outcome]:
    if options.jobs == 1 or len(options.seeds) <= _CHUNK:
        yield from (_run_seed(seed, options.steps) for seed in options.seeds)
        return
    run = partial(_run_seed, steps=options.steps)
    with ProcessPoolExecutor(options.jobs) as pool:
        yield from pool.map(run, options.seeds, chunksize=_CHUNK)


def _run_seed(seed: int, steps: int) -> Outcome:
    return run_schedule(draw_schedule(seed, steps))


def _print_summary(outcomes: list[Outcome], failures: list[Outcome], seconds: float) -> None:
    simulated = sum(outcome.simulated_seconds for outcome in outcomes)
    cpu = sum(outcome.cpu_seconds for outcome in outcomes)
    print(
        f"{len(outcomes):,} seeds, {len(failures)} violations, {sum(outcome.operations for outcome in outcomes):,} durable "
        f"operations; {simulated:,.0f} s simulated in {seconds:.0f} s and {cpu:.0f} s of CPU time ({simulated / cpu:.0f} ×, "
        f"{1000 * cpu / max(1, len(outcomes)):.0f} ms a seed)"
    )
    for kind, count in Counter(outcome.kind for outcome in failures).most_common():
        print(f"  {count:5} {kind}")


def _pick_examples(failures: list[Outcome]) -> list[Outcome]:
    """Return the first failure of each kind."""
    first = {outcome.kind: outcome for outcome in reversed(failures)}
    return list(first.values())[:_SHOWN_FAILURES]


def _print_failure(outcome: Outcome, options: argparse.Namespace) -> None:
    print(f"\n=== seed {outcome.seed}: {outcome.kind}\n{outcome.detail}")
    if options.trace:
        print("\n".join(outcome.trace))
    if options.shrink:
        schedule = draw_schedule(outcome.seed, options.steps)
        smallest = shrink_schedule(schedule, lambda candidate: run_schedule(candidate).kind == outcome.kind)
        again = run_schedule(smallest)
        print(f"--- the smallest schedule found that breaks it\n{smallest.format()}\n--- its trace\n" + "\n".join(again.trace))
        print(again.detail)
    print(f"replay: make simulate SEEDS={outcome.seed}")


if __name__ == "__main__":
    sys.exit(main())

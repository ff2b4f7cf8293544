"""Deterministic simulation: a session, its workers, its disk, its sources and its clients in one process under one seed.

    seed ── workload ──► schedule ── world ──► history ── checker ──► violations ── shrink ──► smallest schedule

`workload` draws a schedule from a seed: the steps of several clients, interleaved, with the faults between them. `world` plays it
against a session on a simulated disk, clock and workers, and records what clients saw. `checker` compares that with the
reference; it knows nothing of the engine. A seed always gives the same run, so a violation can be replayed and shrunk.
"""

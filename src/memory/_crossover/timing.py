"""Timing two ways of doing the same job, and the size at which they take equally long."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax

# How far from the starting size the search goes, in doublings.
_MAX_DOUBLINGS = 10


def paired_minimum_seconds(
    first: Callable[[], Any], second: Callable[[], Any], repeats: int
) -> tuple[float, float]:
    """The fastest of `repeats` runs of each, taking turns, after one run of each that is not timed.

    Every run is waited for: JAX returns before the work is done.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    for job in (first, second):
        jax.block_until_ready(job())
    best = [math.inf, math.inf]
    for _ in range(repeats):
        for which, job in enumerate((first, second)):
            start = time.perf_counter()
            jax.block_until_ready(job())
            best[which] = min(best[which], time.perf_counter() - start)
    return best[0], best[1]


def find_crossing(
    workload: Callable[[int], tuple[Callable[[], Any], Callable[[], Any]]],
    *,
    start: int,
    seconds: float,
    repeats: int,
) -> tuple[float, list[tuple[int, float, float]]]:
    """The size at which the second way of `workload(size)` becomes the faster one.

    Returns:
        The threshold, and the table of (size, seconds of the first, seconds of the second) by
        ascending size.
    """
    begun = time.perf_counter()
    table: dict[int, tuple[float, float]] = {}

    def second_wins(size: int) -> bool:
        table[size] = paired_minimum_seconds(*workload(size), repeats)
        return table[size][1] < table[size][0]

    size = start
    upward = not second_wins(size)
    for _ in range(_MAX_DOUBLINGS):
        following = size * 2 if upward else size // 2
        if following < 1:
            break
        if time.perf_counter() - begun > seconds:
            break
        previous, size = size, following
        if second_wins(size) == upward:
            threshold = _interpolate(table, *sorted((previous, size)))
            return threshold, _rows(table)
    # One way won everywhere: put the threshold just beyond the sizes that were tried.
    return (float(size + 1) if upward else float(size)), _rows(table)


def _interpolate(table: dict[int, tuple[float, float]], low: int, high: int) -> float:
    """Where the logarithm of the ratio of times is 0, linear in the logarithm of the size."""
    at_low = math.log(table[low][1] / table[low][0])
    at_high = math.log(table[high][1] / table[high][0])
    if at_low == at_high:
        return float(high)
    share = min(1.0, max(0.0, at_low / (at_low - at_high)))
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def _rows(table: dict[int, tuple[float, float]]) -> list[tuple[int, float, float]]:
    return [(size, *table[size]) for size in sorted(table)]

"""The exact sum: all pairs, a tile at a time."""

from collections.abc import Iterable
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from kernels import RadialKernel, stein_sum
from kernels._sharded import stein_sum_at_share
from svgd._sums.abstract import AbstractSum, Counts, Plan, Problem
from svgd._sums.costs import exact_seconds
from svgd._sums.devices import Share


class AllPairs(AbstractSum):
    """Every pair of particles, exact up to rounding. Right for any particles."""

    name: ClassVar[str] = "exact"
    reads: ClassVar[frozenset[str]] = frozenset()
    labels: ClassVar[dict[str, str]] = {}

    @classmethod
    def plans(cls, problem: Problem) -> Iterable[Plan]:
        seconds = exact_seconds(problem.n, problem.dimension, problem.dtype)
        return [Plan(seconds, lambda: (cls(), Counts(seconds=seconds)))]

    def sum(
        self,
        kernel: RadialKernel,
        particles: Float[Array, "n d"],
        scores: Float[Array, "n d"],
        *,
        origin: Float[Array, " d"] | None = None,
        chunk: int | None = None,
        share: Share | None = None,
    ) -> Float[Array, "n d"]:
        if share is None:
            return stein_sum(kernel, particles, scores)
        return stein_sum_at_share(kernel, particles, scores, share)

    def split(self, devices: int) -> tuple["AllPairs", PyTree]:
        return self, self

    def lost(
        self, z: Float[Array, "sample d"], moved: Float[Array, ""], shuffled: Bool[Array, ""]
    ) -> Float[Array, ""]:
        return jnp.zeros_like(moved)

    def accuracy(self, tolerance: float, theta: float | None) -> str:
        return "exact up to rounding"

    def choices(self) -> tuple[str, ...]:
        return ()

    def shapes(self) -> tuple[int, ...] | None:
        return None

"""The partition: which particles are summed how. Built once for a set of particles, on the host."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, UInt32

from kernels import RadialKernel
from svgd._sums.abstract import AbstractSum, Counts
from svgd._sums.blocks import AnyArray

_FIELDS = tuple(field.name for field in dataclasses.fields(Counts) if field.name != "seconds")


class Record(eqx.Module):
    """Counts, and the predicted seconds of each way that was considered, as bits.

    Numbers of 64 bits whatever JAX's default, in an array, so that one compiled program serves all
    partitions of the same shapes and gives each its own counts back.

    Attributes:
        words: two for each number, (numbers, 2).
        names: of the ways; those of which there was none have NaN seconds.
    """

    words: UInt32[AnyArray, "numbers 2"]
    names: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, counts: Counts, seconds: dict[str, float]) -> "Record":
        """The record of a partition."""
        integers = np.array([getattr(counts, name) for name in _FIELDS], np.int64)
        floats = np.array([counts.seconds, *seconds.values()], np.float64)
        words = np.concatenate([integers.view(np.uint32), floats.view(np.uint32)])
        return cls(words.reshape(-1, 2), tuple(seconds))

    def read(self) -> tuple[Counts, dict[str, float]]:
        """Counts and seconds.

        Raises:
            ValueError: on a traced record.
        """
        if isinstance(self.words, jax.core.Tracer):
            raise ValueError("a traced partition knows no counts: read them outside of jit")
        words = np.ascontiguousarray(self.words).reshape(-1)
        integers = words[: 2 * len(_FIELDS)].view(np.int64).tolist()
        own, *seconds = words[2 * len(_FIELDS) :].view(np.float64).tolist()
        counts = Counts(**dict(zip(_FIELDS, integers, strict=True)), seconds=own)
        return counts, dict(zip(self.names, seconds, strict=True))


class Partition(eqx.Module):
    """How a Stein update sums over one set of particles. From `SteinUpdate.partition`.

    Discrete, and constant under differentiation: given a partition, the update is a smooth function
    of particles, scores and bandwidth, and its gradient is exact for the approximated sum. Between
    the partitions of two nearby sets of particles the update jumps by no more than the tolerance.

    A partition goes through `jax.jit` as an argument. Its shapes are padded to four sizes per octave
    and its counts are data, so that a run recompiles rarely.

    Attributes:
        way: how particles are summed: over all pairs, cells, leaves, or a way of your own.
        origin: subtracted from particles before they are scaled, (d,).
        kernel: that it was built for; None where sums are exact.
        sample: a few of the particles that it was built from, (sample, d); None where sums are exact.
        record: counts and predictions, which `counts`, `predicted_seconds` and `explain` read.
        tolerance, theta: of the update that built it.
        num_particles: n.
        method: "exact" or "tree", what was asked for or what "auto" picked.
        asked: whether the method was asked for.
    """

    way: AbstractSum
    origin: Float[AnyArray, " d"]
    kernel: RadialKernel | None
    sample: Float[AnyArray, "sample d"] | None
    record: Record
    tolerance: float = eqx.field(static=True)
    theta: float | None = eqx.field(static=True)
    num_particles: int = eqx.field(static=True)
    method: Literal["exact", "tree"] = eqx.field(static=True)
    asked: bool = eqx.field(static=True)

    @property
    def sums(self) -> str:
        """The name of the way of summing: "exact" (all pairs), "cells" (a lattice of proxies), "pairs"
        (near leaves, far nodes), or that of a way of your own."""
        return self.way.name

    @property
    def shapes(self) -> tuple[int, ...] | None:
        """Plan and padded sizes of a sum over cells, for `SteinUpdate.partition(like=...)`."""
        return self.way.shapes()

    @property
    def counts(self) -> Counts:
        """All counts; like the properties below, not of a traced partition."""
        return self.record.read()[0]

    @property
    def predicted_seconds(self) -> dict[str, float]:
        """Predicted time of one update, for each way that was considered."""
        found = self.record.read()[1]
        return {name: seconds for name, seconds in found.items() if not np.isnan(seconds)}

    @property
    def num_leaves(self) -> int:
        """Cells or leaves that hold particles."""
        return self.counts.num_leaves

    @property
    def num_near_leaf_pairs(self) -> int:
        """Directed pairs of leaves summed particle by particle, a leaf with itself included."""
        return self.counts.num_near_leaf_pairs

    @property
    def num_far_pairs(self) -> int:
        """Directed pairs of cells or nodes of which the source acts through proxies or its centre."""
        return self.counts.num_far_pairs

    @property
    def num_far_entries(self) -> int:
        """Far pairs after expansion: (cell, neighbour in a sweep), or (block, node)."""
        return self.counts.num_far_entries

    @property
    def num_tiles(self) -> int:
        """Dense tiles that one evaluation works through: pairs of blocks, or blocks up and down."""
        return self.counts.num_tiles

    def explain(self) -> str:
        """Counts, predicted cost of each method, crossovers and accuracy parameters, as text."""
        backend, counts, exact = jax.default_backend(), self.counts, self.sums == "exact"
        way = "exact" if exact else f"{self.method}, sums over {self.sums}"
        reason = "as asked" if self.asked else "predicted to be the fastest"
        if self.theta == 0:
            reason = "theta = 0 opens everything"
        # A count of 0 is of something that this way of summing doesn't have.
        told = [
            f"{label} {count:,}"
            for name, label in self.way.labels.items()
            if (count := getattr(counts, name))
        ]
        guess = (
            "" if backend == "cpu" else f", from unit costs of two CPU cores: guesses on {backend}"
        )
        predicted = ", ".join(f"{n} {seconds:.3g}" for n, seconds in self.predicted_seconds.items())
        lines = [
            f"{self.num_particles:,} particles on {backend}: {way} ({reason})",
            f"accuracy: {self.way.accuracy(self.tolerance, self.theta)}",
            "; ".join(told),
            f"predicted seconds{guess}: {predicted}",
            *self.way.choices(),
        ]
        return "\n".join(line for line in lines if line)

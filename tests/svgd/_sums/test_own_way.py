"""A way of summing from outside of the package: built, summed, differentiated, compiled, explained."""

import pickle
from collections.abc import Iterable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from partition_cases import exact

import svgd
from kernels import Gaussian


class Grid(svgd.AbstractSum):
    """In one dimension: a score for each of many bins, one product of bins by bins."""

    name: ClassVar[str] = "grid"
    reads: ClassVar[frozenset[str]] = frozenset()
    labels: ClassVar[dict[str, str]] = {"num_leaves": "bins"}

    bin: Array
    middle: Array

    @classmethod
    def plans(cls, problem: svgd.Problem) -> Iterable[svgd.Plan]:
        if problem.dimension > 1:
            return []

        def build():
            z = problem.columns[0]
            edges = np.linspace(z.min(), z.max() + 1e-9, 2001)
            place = np.digitize(z, edges) - 1
            middle = (edges[1:] + edges[:-1]) / 2
            sums = cls(jnp.asarray(place), jnp.asarray(middle))
            return sums, svgd.Counts(num_leaves=len(middle), num_near_leaf_pairs=0, seconds=1e-3)

        return [svgd.Plan(1e-3, build)]

    def sum(self, kernel, particles, scores, *, origin, chunk, share) -> Float[Array, "n d"]:
        z = kernel.scale(particles - origin[None, :])
        scaled = kernel.scale_gradient(scores)
        bins = self.middle.shape[0]
        score = jax.ops.segment_sum(scaled[:, 0], self.bin, bins)
        count = jax.ops.segment_sum(jnp.ones_like(z[:, 0]), self.bin, bins)
        gap = z[:, :1] - self.middle[None, :]
        f, slope, _ = kernel.weights(gap**2)
        return kernel.unscale_gradient((f @ score + (slope * gap) @ count)[:, None])

    def split(self, devices):
        return self, jax.tree.map(lambda _: False, self)

    def lost(self, z, moved, shuffled):
        return shuffled.astype(z.dtype)

    def accuracy(self, tolerance, theta):
        return "as fine as its bins"

    def choices(self):
        return ()

    def shapes(self):
        return None


def test_a_way_of_ones_own(rng, relative_error):
    x = rng.normal(size=(400, 1))
    update = svgd.SteinUpdate(Gaussian(0.5), method=Grid)
    partition = update.partition(x)
    assert partition.sums == "grid" and partition.num_leaves == 2000
    assert "sums over grid" in partition.explain() and "bins 2,000" in partition.explain()
    # Particles act from the middles of bins of 3e-3 bandwidths.
    assert relative_error(update(x, -x), exact(update.kernel, x, -x)) < 1e-2
    one = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("particles",))
    phi = eqx.filter_jit(update)(x, -x, partition)
    assert relative_error(update(x, -x, partition, mesh=one), phi) < 1e-13
    slope = jax.grad(lambda s: jnp.sum(update(x, s, partition) ** 2))(-x)
    assert np.all(np.isfinite(slope))
    assert pickle.loads(pickle.dumps(partition)) == partition
    with pytest.raises(ValueError, match="Grid has no plan for 400 particles in 2"):
        update.partition(np.hstack([x, x]))
    with pytest.raises(ValueError, match='method Grid, but the partition "tree"'):
        update(x, -x, svgd.SteinUpdate(Gaussian(0.5), method="tree").partition(x))
    with pytest.raises(ValueError, match="in another order"):
        update(x[::-1], -x, partition)

"""Whether a partition belongs to the update and the particles that it is given with."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernels import RadialKernel
from svgd._sums.abstract import Settings, sample_of
from svgd._sums.partition import Partition

# Moves against each other, as a share of the spread, that no slow movement makes: a shuffle makes
# 1.4 (root mean square), and so do other draws from the same distribution.
_SHUFFLED = 0.7
# The share of particles that may be lost to a sum.
_LOST = 0.1
# A bandwidth larger by 1.5 shrinks the scaled coordinates by a third.
_RESCALED = 0.3


def check_match(update: Settings, particles: Float[Array, "n d"], partition: Partition) -> None:
    """Raises ValueError where a partition can't be of this update and these particles.

    Sizes, the kernel's type, the method and the accuracy are compared always; the kernel's
    parameters and the places of a sample of particles, where all values are concrete.
    """
    n, dimension = particles.shape
    if (partition.num_particles, partition.origin.shape[0]) != (n, dimension):
        raise ValueError(
            f"the partition is of {partition.num_particles} particles in "
            f"{partition.origin.shape[0]} dimensions, but {n} in {dimension} are given: build it "
            "from these with update.partition(particles)"
        )
    method = update.method
    if method not in ("auto", partition.method, type(partition.way)):
        given = f'"{method}"' if isinstance(method, str) else method.__name__
        raise ValueError(
            f'the update has method {given}, but the partition "{partition.method}": '
            "build it with this update, update.partition(particles)"
        )
    if partition.kernel is None:
        return
    built, given = _accuracy(partition, partition.kernel), _accuracy(update, update.kernel)
    if built != given:
        raise ValueError(
            f"the partition was built for {built}, but the update has {given}: build it with this "
            "update, update.partition(particles)"
        )
    values = jax.tree.leaves((update.kernel, particles, partition))
    if any(isinstance(leaf, jax.core.Tracer) for leaf in values):
        return
    if not particles.is_fully_addressable:
        return
    # At once, even where concrete values are closed over by a function that is being traced.
    with jax.ensure_compile_time_eval():
        found = _differences(update.kernel, partition, particles)
    rescaled, moved, spread, lost = np.asarray(found).tolist()
    if rescaled > _RESCALED:
        raise ValueError(
            "the partition was built for another bandwidth or metric: this kernel's changes scaled "
            f"coordinates by {rescaled:.0%}. Build it with this update, update.partition(particles)"
        )
    if lost > _LOST:
        raise ValueError(
            "the partition was built from other particles, or from these in another order: since "
            f"then they have moved by {moved:.3g} bandwidths against each other (root mean square) "
            f"where their spread was {spread:.3g}, and its sums over {partition.sums} are wrong for "
            f"{lost:.0%} of them. Build it from these with update.partition(particles), and again as "
            "they move"
        )


def _accuracy(owner, kernel: RadialKernel) -> str:
    limit = f"tolerance {owner.tolerance:g}" if owner.theta is None else f"theta {owner.theta:g}"
    return f"{type(kernel).__name__} at {limit}"


@jax.jit
def _differences(kernel, partition, particles):
    """Change of scale; moves and spread in bandwidths; the share of particles that are lost."""
    before = partition.sample.astype(particles.dtype)
    now = sample_of(particles)
    origin = partition.origin.astype(particles.dtype)[None, :]
    scaled = partition.kernel.scale(before - origin)
    size = _root_mean_square(scaled)
    change = _root_mean_square(kernel.scale(before - origin) - scaled)
    rescaled = jnp.max(jnp.where(size > 0, change / size, 0))
    # A common move leaves pairs as they were.
    moves = partition.kernel.scale(now - before)
    moved = jnp.linalg.norm(_root_mean_square(moves - jnp.mean(moves, axis=0)[None, :]))
    spread = jnp.linalg.norm(_root_mean_square(scaled - jnp.mean(scaled, axis=0)[None, :]))
    lost = partition.way.lost(kernel.scale(now - origin), moved, moved > _SHUFFLED * spread)
    return jnp.stack([rescaled, moved, spread, lost])


def _root_mean_square(rows):
    """For each axis."""
    return jnp.sqrt(jnp.mean(rows**2, axis=0))

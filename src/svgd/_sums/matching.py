"""Whether a partition belongs to the update and the particles that it is given with."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernels import RadialKernel
from svgd._sums.partition import Partition

# Particles that a partition remembers: from 1024 to twice as many, evenly spaced in their order.
_SAMPLE = 1024

# Moves against each other, as a share of the spread, that no slow movement makes: a shuffle makes
# 1.4 (root mean square), and so do other draws from the same distribution.
_SHUFFLED = 0.7
# Half-widths from the middle of its cell beyond which a particle is lost to it: the edge is at 1, and
# at 1.5 eight polynomials have grown a thousandfold. The bound holds for shuffled particles that are
# all in one cell; the smaller number leaves room for rounding.
_BEYOND, _SHUFFLED_BEYOND = 1.5, 1.1
_LOST = 0.1
# Bandwidths that particles summed by pairs may move however small their spread.
_MOVED = 0.3
# A bandwidth larger by 1.5 shrinks the scaled coordinates by a third.
_RESCALED = 0.3


def sample_of(particles):
    """A few of the particles, the same rows for every set of as many."""
    return particles[:: max(1, particles.shape[0] // _SAMPLE)]


def check_match(update, particles: Float[Array, "n d"], partition: Partition) -> None:
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
    if update.method not in ("auto", partition.method):
        raise ValueError(
            f'the update has method "{update.method}", but the partition "{partition.method}": '
            "build it with this update, update.partition(particles)"
        )
    if partition.sums == "exact":
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
    shuffled = moved > max(_MOVED, _SHUFFLED * spread)
    if lost > _LOST or (partition.sums == "pairs" and shuffled):
        raise ValueError(
            "the partition was built from other particles, or from these in another order: since "
            f"then they have moved by {moved:.3g} bandwidths against each other (root mean square) "
            f"where their spread was {spread:.3g}"
            + (f", and {lost:.0%} have left their cells. " if lost else ". ")
            + "Build it from these with update.partition(particles), and again as they move"
        )


def _accuracy(owner, kernel: RadialKernel) -> str:
    limit = f"tolerance {owner.tolerance:g}" if owner.theta is None else f"theta {owner.theta:g}"
    return f"{type(kernel).__name__} at {limit}"


@jax.jit
def _differences(kernel, partition, particles):
    """Change of scale; moves and spread in bandwidths; the share of particles lost to their cells."""
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
    lost = jnp.zeros_like(moved)
    if partition.cells is not None:
        blocks, middle = partition.cells.blocks, partition.cells.middle.astype(now.dtype)
        slot = sample_of(blocks.particle_slot)
        cell = blocks.group[slot // blocks.slot_particle.shape[1]]
        offsets = jnp.abs(kernel.scale(now - origin) - middle[cell])
        edge = jnp.where(moved > _SHUFFLED * spread, _SHUFFLED_BEYOND, _BEYOND).astype(now.dtype)
        edge = edge * partition.cells.half_width.astype(now.dtype)
        lost = jnp.mean((jnp.max(offsets, axis=1) > edge).astype(now.dtype))
    return jnp.stack([rescaled, moved, spread, lost])


def _root_mean_square(rows):
    """For each axis."""
    return jnp.sqrt(jnp.mean(rows**2, axis=0))

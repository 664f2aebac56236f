"""The loop of a run: compiled calls of many steps, and where they stop."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from kernels._sharded import Share
from svgd._run.checks import refuse_traced
from svgd._run.placement import shared
from svgd._run.state import NonFiniteError, SVGDState, first_key, non_finite, outside_support
from svgd._run.target import Target


def parts(sampler, target, state, length, rebuild_every, rewhiten_every, split):
    """States on the way through `length` steps: one after each compiled call, of a partition each."""
    update = sampler._update_for(state.points)
    earlier = None
    while length > 0:
        partition, part = None, length
        if update.needs_partition(len(state.points)):
            shapes = tuple(int(size) for size in np.asarray(state.shapes))
            partition = update.partition(state.points, shapes if any(shapes) else None)
            if partition.shapes is not None:
                shapes = partition.shapes
            shapes = jax.device_put(np.asarray(shapes, np.int32))
            state = dataclasses.replace(state, shapes=shapes)
            if partition.sums != "exact":
                part = min(length, rebuild_every - int(state.step) % rebuild_every)
        # Chosen here: a compiled loop would keep the choice that it was traced with.
        devices = shared(state.points, partition, split)

        def steps(count, last=False, start=state, partition=partition, devices=devices):
            count, last = jax.device_put((np.int32(count), np.bool_(last)))
            return _advance(
                sampler, target, start, partition, count, last, rewhiten_every, *devices
            )

        new, good = steps(part, part == length)
        refuse_traced("a run", good)
        if not bool(good):
            made = int(new.step) - int(state.step)
            raise _stopped(target, new, (steps, made) if made else earlier)
        yield new
        earlier = steps, part
        state = new
        length -= part


@eqx.filter_jit
def _advance(
    sampler: Any,
    target: Target,
    state: SVGDState,
    partition: Any,
    length: Array,
    last: Bool[Array, ""],
    rewhiten_every: int,
    mesh: Mesh | None,
    share: Share | None,
) -> tuple[SVGDState, Bool[Array, ""]]:
    """`length` steps, or fewer: it stops before the first whose particles are not finite.

    After the last of a block, which others see, the log-densities are looked at too; those of another
    step are in its successor.
    """

    def advance(carry):
        left, state, _ = carry
        new = sampler._step(target, state, partition, rewhiten_every, mesh, share)
        finite = jnp.all(jnp.isfinite(new.points))
        kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state)
        return left - 1, kept, finite

    def advancing(carry):
        left, _, finite = carry
        return (left > 0) & finite

    def inside(state):
        points = state.whitening.unwhiten(state.points)
        return jnp.all(jnp.isfinite(target.log_densities(points, first_key(state.key))))

    _, state, good = jax.lax.while_loop(advancing, advance, (length, state, jnp.bool_(True)))
    if target.is_log_density:
        good = jax.lax.cond(last & good, inside, lambda _: good, state)
    return state, good


def _stopped(target: Target, state: SVGDState, way: tuple[Callable, int] | None) -> NonFiniteError:
    """The error of a run that stops at this state, with the last state that was good.

    Args:
        way: a function that makes steps towards this state, and how many of them lead to it.
    """
    outside = outside_support(target, state)
    if outside is None:
        return non_finite(target, state)
    if way is None:
        return NonFiniteError(f"{outside}, in the state to go on from", int(state.step), state)
    steps, count = way
    return NonFiniteError(
        f"in step {int(state.step)} {outside}. No score leads back from there: sample parameters without "
        "bounds, such as logarithms, or take a smaller learning rate. The particles before that step are "
        "in this exception's `particles`",
        int(state.step),
        # The steps are made again, rather than each state kept in case the next is bad.
        steps(count - 1)[0],
    )

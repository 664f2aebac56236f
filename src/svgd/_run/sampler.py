"""Stein variational gradient descent: moves a set of particles onto a distribution."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Bool, PyTree

import kernels
from kernels._sharded import Share
from svgd._bandwidth import whitened_bandwidth
from svgd._run import whitening as _whitening
from svgd._run.layout import lay_out
from svgd._run.placement import in_force, place_particles, place_state, shared, split_over
from svgd._run.start import begin
from svgd._run.state import SVGDState, check_restored, non_finite, typed
from svgd._run.target import Target, as_target
from svgd._sums.choice import partition_for
from svgd._sums.devices import check_divides
from svgd._sums.evaluate import direction
from svgd._update import SteinUpdate

# Steps between two looks from Python: for the progress bar, the callback and interrupts. A block is
# one call of a compiled loop whose length is an argument, so its size costs no compilation.
_BLOCK_STEPS = 50
# Steps between two standardisations under whiten="particles". Often enough to follow particles that
# close in on a posterior, seldom enough that the optimiser's moments keep their meaning.
_REWHITEN_EVERY = 10
# Entries of `Partition.shapes`.
_NUM_SHAPES = 5


def _default_learning_rate(count):
    return 0.2 / jnp.sqrt(1 + count / 50)


# With Adam's own b2 = 0.999, the large scores of a poor start would brake a particle for a thousand
# steps: of b2 = 0.9, 0.99 and 0.999 only the first follows a posterior whose scale it does not know.
# A direction far below eps moves a particle in proportion: with Adam's own 1e-8 particles on both
# sides of where the direction vanishes pile up there, in stripes finer than the kernel can spread.
DEFAULT_OPTIMIZER = optax.adam(_default_learning_rate, b2=0.9, eps=0.01)


class SVGD(eqx.Module):
    """Stein variational gradient descent (Liu and Wang, 2016) in whitened coordinates.

        particles = jax.random.normal(key, (5000, 3))
        state = svgd.SVGD().run(log_density, particles)
        state.particles

    Attributes:
        update: the Stein update, whose kernel's bandwidth is in whitened coordinates, that is, in
            posterior standard deviations. None takes a Gaussian of `whitened_bandwidth`.
        optimizer: any optax transformation. It is handed -phi, so that a descent method descends
            the Kullback-Leibler divergence. None takes Adam with b2 = 0.9 and eps = 0.01, at a
            rate of 0.2 / sqrt(1 + t / 50), in posterior standard deviations, in step t.
    """

    update: SteinUpdate | None = None
    optimizer: optax.GradientTransformation | None = eqx.field(static=True, default=None)

    def init(
        self,
        log_density: Callable,
        particles: PyTree,
        *,
        key: Array | None = None,
        whiten: str | ArrayLike | None = "auto",
        batched: bool = False,
        kind: str = "auto",
    ) -> SVGDState:
        """The state before the first step. Arguments as in `run`.

        Runs eagerly: whitening by Laplace's approximation searches for a mode.
        """
        layout, points = lay_out(particles)
        key = None if key is None else typed(key)
        target = as_target(log_density, layout, points, key, batched, kind)
        whitening = _whitening.choose(whiten, target, points, key)
        z, opt_state = begin(self._optimizer, target, whitening, points, key)
        return SVGDState(
            z,
            whitening,
            opt_state,
            jax.device_put(np.zeros((), np.int32)),
            None if key is None else jax.random.key_data(key),
            jax.device_put(np.zeros(_NUM_SHAPES, np.int32)),
            jax.device_put(np.int32(_whitening.KINDS.index(whitening.kind))),
            layout,
            None if key is None else jax.random.key_impl(key),
        )

    def step(
        self,
        log_density: Callable,
        state: SVGDState,
        *,
        partition: Any = None,
        batched: bool = False,
        kind: str = "auto",
        rewhiten_every: int = _REWHITEN_EVERY,
        mesh: Mesh | None = None,
        axis: str | None = None,
    ) -> SVGDState:
        """One step. May be jitted, with `log_density` static or closed over.

        Args:
            partition: a partition of `state.points` for the update, where it works on one.
            rewhiten_every: under whiten="particles", standardise after each step whose number is a
                multiple of it.
            batched, kind, mesh, axis: as in `run`.

        The result is not checked for NaN; `run` does that.
        """
        check_restored(state)
        target = as_target(log_density, state.layout, state.points, state.key, batched, kind)
        split = split_over(mesh, axis)
        if split is not None:
            check_divides(len(state.points), *split, "a step on a mesh splits its particles")
        partition = partition_for(self._update_for(state.points), state.points, partition)
        devices = shared(state.points, partition, split)
        return self._step(target, state, partition, rewhiten_every, *devices)

    def run(
        self,
        log_density: Callable,
        particles: PyTree | SVGDState,
        num_steps: int = 500,
        *,
        key: Array | None = None,
        whiten: str | ArrayLike | None = "auto",
        batched: bool = False,
        kind: str = "auto",
        rebuild_every: int = 1,
        progress: bool = False,
        callback: Callable[[SVGDState], Any] | None = None,
        callback_every: int = _BLOCK_STEPS,
        mesh: Mesh | None = None,
        axis: str | None = None,
    ) -> SVGDState:
        """Moves particles onto the distribution of `log_density`.

        Args:
            log_density: called with one particle, under vmap: returns a scalar, the log-density up
                to a constant, or the score as a pytree like the particle. The shape of what it
                returns decides which it is, unless `kind` says. A potential energy is minus a log-density.
            particles: where to start. An array of shape `(n, d)` or a pytree of arrays with leading
                axis `n`; or a state, to go on from.
            num_steps: steps to make. Each costs one score of every particle and one update.
            key: for a stochastic `log_density(particle, key)`, such as one of minibatches. Every
                step gets a new key, and all particles of a step the same.
            whiten: the coordinates in which to sample.
                "laplace": the inverse Hessian at the mode, for a deterministic log-density.
                    Particles whose root-mean-square distance from the mode is over ten standard
                    deviations are a start from nowhere: they are mapped onto the mode, affinely.
                "particles": the particles' own running covariance, taken again every ten steps;
                    its diagonal where there are fewer than 4 d particles or d is over 512.
                "auto": "laplace" where there is such a mode, else "particles".
                An array: a factor L with L L^T the covariance, (d, d), or (d,) for a diagonal.
                None: the coordinates as given, which then should have unit scale.
            batched: call `log_density` with all particles at once, to return shape `(n,)` or a
                pytree like the particles.
            kind: "log_density" or "score" says which of the two the function is, so that a
                log-density of shape (d,), whose sum was forgotten, is an error. "auto" takes it for
                a score.
            rebuild_every: steps between two partitions of the tree update.
            progress: show a bar (needs tqdm: the extra `progress`).
            callback: called with the state every `callback_every` steps and at the end; a true
                answer ends the run.
            callback_every: see `callback`.
            mesh: devices to split the particles over, with their scores, the sums of the update and
                the optimiser's moments. The number of devices must divide that of the particles.
                A tree update is partitioned by this process, which gathers the particles for it.
            axis: the name of the mesh axis; may be left out where it is the only one.

        Returns:
            The last state; its `particles` are in the user's coordinates and structure. Under a mesh
            its rows are split over the devices.

        Raises:
            ValueError: on bad arguments, before anything is computed; where a log-density is not
                finite at a particle that the run would start from; on a state that was read from a
                file into one made with another `whiten`.
            NonFiniteError: if particles become NaN or infinite, or a log-density NaN. It names the
                step and carries the last finite particles.

        A run of `a + b` steps equals a run of `a`, saved, restored, and a run of `b`, bit for bit,
        where `a` is a multiple of `rebuild_every`.
        """
        num_steps = _count(num_steps, "num_steps", least=0)
        rebuild_every = _count(rebuild_every, "rebuild_every", least=1)
        callback_every = _count(callback_every, "callback_every", least=1)
        split = split_over(mesh, axis)
        going_on = isinstance(particles, SVGDState)
        if going_on and (key is not None or not (isinstance(whiten, str) and whiten == "auto")):
            raise ValueError(
                "key and whiten belong to the start of a run; this one goes on from a state"
            )
        with in_force(split):
            if going_on:
                state = particles
                check_restored(state)
            else:
                particles = place_particles(particles, *split) if split else particles
                state = self.init(
                    log_density, particles, key=key, whiten=whiten, batched=batched, kind=kind
                )
            if split is not None:
                check_divides(len(state.points), *split, "a run on a mesh splits its particles")
                state = place_state(state, state.points.shape, *split)
            target = as_target(log_density, state.layout, state.points, state.key, batched, kind)
        rewhiten_every = rebuild_every * -(-_REWHITEN_EVERY // rebuild_every)

        bar = _progress_bar(num_steps) if progress else None
        done = 0
        try:
            while done < num_steps:
                length = min(callback_every, num_steps - done)
                with in_force(split):
                    state = self._block(target, state, length, rebuild_every, rewhiten_every, split)
                done += length
                if bar is not None:
                    bar.update(length)
                if callback is not None and callback(state):
                    break
        finally:
            if bar is not None:
                bar.close()
        return state

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return DEFAULT_OPTIMIZER if self.optimizer is None else self.optimizer

    def _update_for(self, points: Array) -> SteinUpdate:
        if self.update is not None:
            return self.update
        n, d = points.shape
        bandwidth = np.asarray(whitened_bandwidth(n, d), points.dtype)
        return SteinUpdate(kernels.Gaussian(bandwidth))

    def _step(self, target, state, partition, rewhiten_every, mesh, share) -> SVGDState:
        key, subkey = (None, None) if state.key is None else jax.random.split(state.key)
        particles = state.whitening.unwhiten(state.points)
        scores = state.whitening.whiten_score(target.score(particles, subkey))
        update = self._update_for(state.points)
        phi = direction(update, state.points, scores, partition, mesh, share)
        # Optimisers mix their counters with floats, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            change, opt_state = self._optimizer.update(-phi, state.opt_state, state.points)
        points = optax.apply_updates(state.points, change)
        if share is not None:
            rows = NamedSharding(mesh, PartitionSpec(share.axis))
            points = jax.lax.with_sharding_constraint(points, rows)
        step = state.step + 1
        whitening = state.whitening
        if whitening.kind == "particles":
            whitening, points, opt_state = jax.lax.cond(
                step % rewhiten_every == 0,
                # A function of its own: a bound method hashes the sampler, whose kernel is traced.
                lambda *standing: self._rewhiten(*standing),
                lambda *unchanged: unchanged,
                whitening,
                points,
                opt_state,
            )
        key_data = None if key is None else jax.random.key_data(key)
        return SVGDState(
            points,
            whitening,
            opt_state,
            step,
            key_data,
            state.shapes,
            state.whitened_by,
            state.layout,
            state.key_impl,
        )

    def _rewhiten(self, whitening, points, opt_state):
        whitening, points, foreign = _whitening.rewhiten(whitening, points)
        # Moments in other units would be wrong by orders of magnitude: begin again.
        fresh = self._optimizer.init(points)
        opt_state = jax.tree.map(lambda a, b: jnp.where(foreign, a, b), fresh, opt_state)
        return whitening, points, opt_state

    def _block(self, target, state, length, rebuild_every, rewhiten_every, split) -> SVGDState:
        """`length` steps, in as many compiled calls as there are partitions."""
        update = self._update_for(state.points)
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
            count = jax.device_put(np.int32(part))
            # Chosen here: a compiled loop would keep the choice that it was traced with.
            devices = shared(state.points, partition, split)
            state, finite = _advance(
                self, target, state, partition, count, rewhiten_every, *devices
            )
            if not bool(finite):
                raise non_finite(target, state)
            length -= part
        return state


@eqx.filter_jit
def _advance(
    sampler: SVGD,
    target: Target,
    state: SVGDState,
    partition: Any,
    length: Array,
    rewhiten_every: int,
    mesh: Mesh | None,
    share: Share | None,
) -> tuple[SVGDState, Bool[Array, ""]]:
    """`length` steps, or fewer: it stops before the first whose particles are not finite."""

    def advance(carry):
        left, state, _ = carry
        new = sampler._step(target, state, partition, rewhiten_every, mesh, share)
        finite = jnp.all(jnp.isfinite(new.points))
        kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state)
        return left - 1, kept, finite

    def advancing(carry):
        left, _, finite = carry
        return (left > 0) & finite

    _, state, finite = jax.lax.while_loop(advancing, advance, (length, state, jnp.bool_(True)))
    return state, finite


def _count(value: Any, name: str, least: int) -> int:
    try:
        count = value.__index__()
    except (AttributeError, TypeError):
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}")
    return count


def _progress_bar(total: int):
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    return tqdm(total=total, unit="step", desc="SVGD")

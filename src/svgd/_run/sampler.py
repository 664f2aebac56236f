"""Stein variational gradient descent: moves a set of particles onto a distribution."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, PyTree

import kernels
from memory import checked_integer, warn_caller
from svgd._bandwidth import whitened_bandwidth
from svgd._run import whitening as _whitening
from svgd._run.checks import RunWarning, refuse_half, refuse_traced, says_stop
from svgd._run.layout import lay_out
from svgd._run.loop import parts
from svgd._run.optimizer import DEFAULT_OPTIMIZER, check_its_state, check_optimizer
from svgd._run.placement import in_force, place_particles, place_state, shared, split_over
from svgd._run.start import begin
from svgd._run.state import (
    Origin,
    SVGDState,
    check_restored,
    typed,
)
from svgd._run.target import as_target
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

    def __init__(
        self,
        update: SteinUpdate | None = None,
        optimizer: optax.GradientTransformation | None = None,
        **unknown: Any,
    ):
        """
        Raises:
            TypeError: on anything but a Stein update and an optax transformation.
        """
        if unknown:
            raise TypeError(
                f"SVGD takes update and optimizer, got {', '.join(unknown)}: a learning rate belongs to the "
                "optimizer, as in SVGD(optimizer=optax.adam(0.1)), all else to `run`"
            )
        if not (update is None or isinstance(update, SteinUpdate)):
            raise TypeError(
                f"update must be a SteinUpdate, got {type(update).__name__}: a kernel is wrapped, as in "
                "svgd.SVGD(svgd.SteinUpdate(kernel))"
            )
        if not (optimizer is None or (hasattr(optimizer, "init") and hasattr(optimizer, "update"))):
            raise TypeError(
                f"optimizer must be an optax transformation such as optax.adam(0.1), got {optimizer!r}"
            )
        self.update = update
        self.optimizer = optimizer

    def __str__(self) -> str:
        update = self.update or "a Gaussian kernel of svgd.whitened_bandwidth(n, d)"
        optimizer = "adam(0.2 / sqrt(1 + t / 50), b2=0.9, eps=0.01)"
        if self.optimizer is not None:
            optimizer = "the optimizer given"
        return f"SVGD in whitened coordinates\n  update: {update}\n  steps: {optimizer}"

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
        return self._begin(target, points, key, whiten)

    def _begin(self, target, points, key, whiten) -> SVGDState:
        refuse_half(points.dtype)
        check_optimizer(self._optimizer, points)
        whitening, obstacle = _whitening.choose(whiten, target, points, key)
        z, opt_state = begin(self._optimizer, target, whitening, points, key)
        origin = Origin(
            jax.device_put(np.int32(_whitening.KINDS.index(whitening.kind))),
            jax.device_put(np.bool_(whitening.moved)),
            jax.device_put(np.int32(obstacle.index)),
            jax.device_put(np.float32(obstacle.amount)),
        )
        return SVGDState(
            z,
            whitening,
            opt_state,
            jax.device_put(np.zeros((), np.int32)),
            None if key is None else jax.random.key_data(key),
            jax.device_put(np.zeros(_NUM_SHAPES, np.int32)),
            origin,
            target.layout,
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

        The result is not checked: `run` does that. Where a particle has left the support of a log-density,
        which is then -inf, its score counts as NaN, and all particles of the next step are NaN.
        """
        check_restored(state)
        check_its_state(self._optimizer, state.points, state.opt_state)
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
            callback: called with the state every `callback_every` steps and at the end, of a run of no
                steps as well; a true answer ends the run.
            callback_every: see `callback`.
            mesh: devices to split the particles over, with their scores, the sums of the update and
                the optimiser's moments. The number of devices must divide that of the particles.
                A tree update is partitioned by this process, which gathers the particles for it.
            axis: the name of the mesh axis; may be left out where it is the only one.

        Returns:
            The last state; its `particles` are in the user's coordinates and structure. Under a mesh
            its rows are split over the devices. Interrupted (Ctrl-C), the state that it had reached, with
            a RunWarning.

        Raises:
            ValueError: on bad arguments, before anything is computed; where a log-density is not
                finite at a particle that the run would start from; on a state that was read from a
                file into one made with another `whiten`, or of another optimiser.
            TypeError: under jit, vmap or grad, where `step` works; on an optimiser that needs more than a
                direction.
            NonFiniteError: if particles become NaN or infinite, or a log-density NaN, or where particles
                have left its support. It names the step and carries the state before, whose particles
                are finite and inside.

        Warns:
            RunWarning: on particles that all start in one place; on a function that returns one array of its
                argument's shape, which may be a score or a log-density whose sum was left out.

        A run of `a + b` steps equals a run of `a`, saved, restored, and a run of `b`, bit for bit,
        where `a` is a multiple of `rebuild_every`.
        """
        num_steps = checked_integer("num_steps", num_steps, least=0)
        rebuild_every = checked_integer("rebuild_every", rebuild_every, least=1)
        callback_every = checked_integer("callback_every", callback_every, least=1)
        split = split_over(mesh, axis)
        going_on = isinstance(particles, SVGDState)
        if going_on and (key is not None or not (isinstance(whiten, str) and whiten == "auto")):
            raise ValueError(
                "key and whiten belong to the start of a run; this one goes on from a state"
            )
        refuse_traced("a run", (particles, key))
        with in_force(split):
            if going_on:
                state = particles
                check_restored(state)
                check_its_state(self._optimizer, state.points, state.opt_state)
                target = as_target(
                    log_density, state.layout, state.points, state.key, batched, kind
                )
            else:
                particles = place_particles(particles, *split) if split else particles
                layout, points = lay_out(particles)
                key = None if key is None else typed(key)
                target = as_target(log_density, layout, points, key, batched, kind)
                state = self._begin(target, points, key, whiten)
            if split is not None:
                check_divides(len(state.points), *split, "a run on a mesh splits its particles")
                state = place_state(state, state.points.shape, *split)
        rewhiten_every = rebuild_every * -(-_REWHITEN_EVERY // rebuild_every)

        bar = _progress_bar(num_steps) if progress else None
        done = 0
        try:
            while True:
                length = min(callback_every, num_steps - done)
                with in_force(split):
                    for reached in parts(
                        self, target, state, length, rebuild_every, rewhiten_every, split
                    ):
                        state = reached
                done += length
                if bar is not None:
                    bar.update(length)
                if (callback is not None and says_stop(callback(state))) or done >= num_steps:
                    break
        except KeyboardInterrupt:
            warn_caller(
                f"the run was interrupted: its state is that after step {int(state.step)}",
                RunWarning,
            )
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
            state.origin,
            state.layout,
            state.key_impl,
        )

    def _rewhiten(self, whitening, points, opt_state):
        whitening, points, foreign = _whitening.rewhiten(whitening, points)
        # Moments in other units would be wrong by orders of magnitude: begin again.
        fresh = self._optimizer.init(points)
        opt_state = jax.tree.map(lambda a, b: jnp.where(foreign, a, b), fresh, opt_state)
        return whitening, points, opt_state


def _progress_bar(total: int):
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    return tqdm(total=total, unit="step", desc="SVGD")

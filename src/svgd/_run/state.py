"""The state of a run: what the next step depends on, and the error that carries the last good one."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from memory import checked_key
from svgd._run.layout import ParticleLayout
from svgd._run.target import Target
from svgd._run.whitening import KINDS, Obstacle, Whitening

# Parameters whose mean and spread are printed.
_LARGEST_SHOWN = 12


class Origin(eqx.Module):
    """How a run began. Arrays, which are saved with a state where words are not; `str` is a sentence.

    Attributes:
        whitened_by: the index of `Whitening.kind` in `svgd._run.whitening.KINDS`, so that a state that is
            read into one of another kind is told.
        moved: whether the start was mapped affinely onto the mode.
        obstacle: the index in `svgd._run.whitening.OBSTACLES` of why Laplace's approximation was not taken.
        amount: the number in its text.
    """

    whitened_by: Int[Array, ""]
    moved: Bool[Array, ""]
    obstacle: Int[Array, ""]
    amount: Float[Array, ""]

    def __str__(self) -> str:
        if isinstance(self.whitened_by, jax.core.Tracer):
            return "traced"
        kind = KINDS[int(self.whitened_by)]
        text = {
            "none": "in the coordinates as given",
            "factor": "in coordinates whitened by the factor given",
            "particles": "in coordinates whitened by the particles' own running covariance",
            "laplace": "in coordinates whitened by Laplace's approximation",
        }[kind]
        if int(self.obstacle):
            text += f", since {Obstacle(int(self.obstacle), float(self.amount))}"
        if bool(self.moved):
            text += "; the start was more than ten standard deviations from the mode, and mapped onto it"
        return text


class SVGDState(eqx.Module):
    """Where a run stands: everything that the next step depends on.

    A pytree: `equinox.tree_serialise_leaves` writes it, and `tree_deserialise_leaves` reads it back
    into the state that `SVGD.init` makes from particles of the same shape, dtype and arguments.

    Attributes:
        points: the particles in the coordinates that are sampled, shape (n, d).
        whitening: the map to the user's coordinates.
        opt_state: the optimiser's state; its moments belong to particles, row by row.
        step: how many steps have been made.
        key_data: of the key from which the next step of a stochastic run splits its own, or None.
        shapes: of the latest partition of a tree update, which the next one keeps where it can; 0
            before the first.
        origin: how the run began: the coordinates it chose and why. Prints as a sentence.
        layout: how a point is the user's pytree.
        key_impl: the generator of that key.
    """

    points: Float[Array, "n d"]
    whitening: Whitening
    opt_state: PyTree
    step: Int[Array, ""]
    key_data: Array | None
    shapes: Int[Array, " sizes"]
    origin: Origin
    layout: ParticleLayout = eqx.field(static=True)
    key_impl: Any = eqx.field(static=True, default=None)

    @property
    def key(self) -> Array | None:
        """The key, or None for a deterministic run."""
        if self.key_data is None:
            return None
        return jax.random.wrap_key_data(self.key_data, impl=self.key_impl)

    @property
    def particles(self) -> PyTree:
        """The particles in the user's own coordinates and structure."""
        return _unwhitened(self.layout, self.whitening, self.points)

    def __str__(self) -> str:
        if isinstance(self.points, jax.core.Tracer):
            return repr(self)
        n, d = self.points.shape
        size = f"{n} particles of {d} parameters ({self.points.dtype})"
        rows = [f"{size} after {int(self.step)} steps, {self.origin}"]
        values = np.asarray(self.layout.ravel(self.particles), np.float64)
        for name, column in zip(self.layout.names[:_LARGEST_SHOWN], values.T, strict=False):
            rows.append(f"  {name}: mean {column.mean():.4g}, sd {column.std():.4g}")
        if d > _LARGEST_SHOWN:
            rows.append(f"  and {d - _LARGEST_SHOWN} more")
        return "\n".join(rows)


@eqx.filter_jit
def _unwhitened(layout: ParticleLayout, whitening: Whitening, points: Array) -> PyTree:
    return layout.unravel(whitening.unwhiten(points))


class NonFiniteError(FloatingPointError):
    """Particles became NaN or infinite, or left the support of the log-density.

    Attributes:
        step: the step, counted from 1 over the whole life of the state, that led there.
        state: the state before that step.
    """

    def __init__(self, message: str, step: int, state: SVGDState):
        super().__init__(message)
        self.step = step
        self.state = state

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.step, self.state)

    @property
    def particles(self) -> PyTree:
        """The last finite particles, in the user's coordinates and structure."""
        return self.state.particles


def outside_support(target: Target, state: SVGDState) -> str | None:
    """Which of the particles have a log-density that is not finite, in words; None where none has."""
    if not target.is_log_density:
        return None
    points = state.whitening.unwhiten(state.points)
    values = np.asarray(target.log_densities(points, first_key(state.key)))
    outside = np.flatnonzero(~np.isfinite(values))
    if not outside.size:
        return None
    first = outside[0]
    return (
        f"{outside.size} of {len(values)} particles left the support of the log-density: the first is "
        f"particle {first}, {state.layout.shown(points[first])}, where it is {values[first]}"
    )


def non_finite(target: Target, state: SVGDState) -> NonFiniteError:
    """The error of a step from this state whose particles are not finite."""
    step = int(state.step) + 1
    scores = target.score(state.whitening.unwhiten(state.points), first_key(state.key))
    bad = np.flatnonzero(~np.isfinite(np.asarray(scores)).all(axis=1))
    if bad.size:
        cause = (
            f"the score of {bad.size} of {scores.shape[0]} particles is not finite (the first is "
            f"particle {bad[0]}): the log-density is NaN or has no gradient there, or overflows"
        )
    else:
        cause = "the scores are finite, so the step overflowed: take a smaller learning rate"
    return NonFiniteError(
        f"particles became NaN or infinite in step {step}; {cause}. The last finite particles are "
        "in this exception's `particles`",
        step,
        state,
    )


def check_restored(state: SVGDState) -> None:
    """Raises ValueError where a state was read from a file into one that whitens otherwise."""
    if isinstance(state.origin.whitened_by, jax.core.Tracer):
        return
    saved, kind = KINDS[int(state.origin.whitened_by)], state.whitening.kind
    if saved != kind:
        wanted = {"none": "whiten=None", "factor": "whiten= the same factor"}
        raise ValueError(
            f'the state was saved in a run whose whitening is "{saved}", and read into a state whose '
            f'whitening is "{kind}": make that one with '
            f"""init(..., {wanted.get(saved, f'whiten="{saved}"')})"""
        )


def first_key(key):
    return None if key is None else jax.random.split(key)[1]


def typed(key: Any) -> Array:
    """A typed key, from either kind that JAX hands out; a ValueError on anything else."""
    key = checked_key(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)

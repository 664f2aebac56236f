"""Whitened coordinates: sample where the posterior has unit scale, answer in the user's own."""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike, Bool, Float

from memory import checked_floats
from svgd._run.checks import refuse_traced
from svgd._run.target import Target

# A full covariance is estimated from at least this many particles for each dimension, and up to
# this dimension, where its Cholesky factor stays cheap beside a step; else the diagonal is used.
_PARTICLES_PER_DIMENSION = 4
_LARGEST_FULL_DIMENSION = 512
# The search for a mode takes Hessians: d gradients each, and a (d, d) matrix.
_LARGEST_MODE_DIMENSION = 256

# A cloud whose root-mean-square distance from the mode exceeds this many posterior standard
# deviations says nothing about the posterior: it is a poor start, and is moved to the mode.
_FAR_AWAY = 10.0

# A change of coordinates by more than this, in their own units, makes them new ones.
_FOREIGN = 0.3

_MODE_STEPS = 500
_NEWTON_STEPS = 20
# Newton decrement g^T H^-1 g, the squared distance to the mode in standard deviations, that counts
# as arrived; float32 gradients of large sums leave a floor well above rounding.
_ARRIVED = 1e-4
_CLOSE_ENOUGH = 1e-2


# A saved state names its kind by the place in this list, and by that in the next why no mode is used.
KINDS = ("none", "particles", "laplace", "factor")
OBSTACLES = (
    "",
    "the function given is a score, and the search for a mode needs a log-density",
    "the log-density is stochastic",
    f"the search for a mode takes at most {_LARGEST_MODE_DIMENSION} parameters",
    "the Hessian of the log-density is not negative definite where the search for a mode ended",
    "the search for a mode ended about {:.2g} standard deviations from it",
)


class Obstacle(NamedTuple):
    """Why there is no approximation by Laplace: an index into OBSTACLES, and the number in its text."""

    index: int = 0
    amount: float = 0.0

    def __str__(self) -> str:
        return OBSTACLES[self.index].format(self.amount)


class Whitening(eqx.Module):
    """An affine map between the user's coordinates x and those that are sampled, x = center + L z.

    Attributes:
        center: shape (d,).
        factor: L. Shape (d, d), or (d,) for a diagonal.
        kind: "none", "particles", "laplace" or "factor": where the map comes from.
        moved: whether the particles given were too far from the mode to start from, and were mapped
            affinely onto it.
    """

    center: Float[Array, " d"]
    factor: Float[Array, "d d"] | Float[Array, " d"]
    kind: Literal["none", "particles", "laplace", "factor"] = eqx.field(static=True)
    moved: bool = eqx.field(static=True, default=False)

    def whiten(self, points: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """z from x."""
        shifted = points - self.center[None, :]
        if self.factor.ndim == 1:
            return shifted / self.factor[None, :]
        if self.kind == "factor":
            return jnp.linalg.solve(self.factor, shifted.T).T
        return solve_triangular(self.factor, shifted.T, lower=True).T

    def unwhiten(self, whitened: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """x from z."""
        return self.center[None, :] + _times(whitened, self.factor, transpose=True)

    def whiten_score(self, scores: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The score in z, from that in x."""
        return _times(scores, self.factor, transpose=False)


def choose(
    whiten: str | ArrayLike | None,
    target: Target,
    points: Float[Array, "n d"],
    key: Array | None,
) -> tuple[Whitening, Obstacle]:
    """The map that a run's `whiten` asks for, and what kept it from being Laplace's approximation.

    Raises:
        ValueError: on another word, a factor that does not fit, or "laplace" without a mode.
    """
    if whiten is None:
        return identity(points), Obstacle()
    if not isinstance(whiten, str):
        return from_factor(points, whiten), Obstacle()
    if whiten == "particles":
        return from_particles(points), Obstacle()
    if whiten not in ("auto", "laplace"):
        raise ValueError(
            f'whiten must be "auto", "laplace", "particles", an array or None, got {whiten!r}'
        )
    if not target.is_log_density:
        found = Obstacle(1)
    elif key is not None:
        found = Obstacle(2)
    elif whiten == "auto" and points.shape[1] > _LARGEST_MODE_DIMENSION:
        found = Obstacle(3)
    else:
        found = from_mode(target, points)
    if isinstance(found, Whitening):
        return found, Obstacle()
    if whiten == "auto":
        return from_particles(points), found
    raise ValueError(
        f'whiten="laplace" found no approximation: {found}. Use whiten="particles", or give a '
        "factor of the covariance"
    )


def identity(points: Float[Array, "n d"]) -> Whitening:
    """The user's own coordinates."""
    d = points.shape[1]
    dtype = np.dtype(points.dtype)
    return Whitening(jax.device_put(np.zeros(d, dtype)), jax.device_put(np.ones(d, dtype)), "none")


def from_factor(points: Float[Array, "n d"], factor: ArrayLike) -> Whitening:
    """A given factor L, (d, d) with L L^T the covariance, or (d,) of standard deviations.

    Raises:
        ValueError: on another shape, a non-finite value or a singular factor.
    """
    factor = checked_floats("the factor that whiten was given", factor).astype(points.dtype)
    d = points.shape[1]
    if factor.shape not in ((d,), (d, d)):
        raise ValueError(
            f"whiten was given a factor of shape {factor.shape} for particles of dimension {d}: "
            f"expected ({d}, {d}), or ({d},) for a diagonal"
        )
    if not isinstance(factor, jax.core.Tracer):
        values = np.asarray(factor, np.float64)
        if not np.all(np.isfinite(values)):
            raise ValueError("whiten was given a factor with values that are not finite")
        smallest = np.abs(values).min() if factor.ndim == 1 else np.linalg.svd(values)[1].min()
        if smallest == 0:
            raise ValueError("whiten was given a singular factor, which cannot be inverted")
    return Whitening(jnp.mean(points, axis=0), factor, "factor")


@eqx.filter_jit
def from_particles(points: Float[Array, "n d"]) -> Whitening:
    """The particles' own mean and covariance: full when they can carry one, else its diagonal."""
    center, factor = _moments(points)
    return Whitening(center, factor, "particles")


def rewhiten(
    whitening: Whitening, whitened: Float[Array, "n d"]
) -> tuple[Whitening, Float[Array, "n d"], Bool[Array, ""]]:
    """Standardises particles again, and folds that into the map; x stays what it was.

    The covariance is taken in whitened coordinates, where it is well conditioned however badly
    scaled the user's are.

    Returns:
        The new map, the particles in its coordinates, and whether these are so different from the
        old ones that what an optimiser remembers of them no longer holds.
    """
    # Spread about the old center, not the new: a cloud on its way somewhere gets longer strides.
    shift, factor = _moments(whitened, about=jnp.zeros_like(whitening.center))
    again = Whitening(shift, factor, whitening.kind, whitening.moved)
    center = whitening.center + _times(shift[None, :], whitening.factor, transpose=True)[0]
    if factor.ndim == 1:
        composed = whitening.factor * factor
        change = jnp.max(jnp.abs(factor - 1))
    else:
        composed = jnp.matmul(whitening.factor, factor, precision=jax.lax.Precision.HIGHEST)
        change = jnp.max(jnp.abs(factor - jnp.eye(len(shift), dtype=factor.dtype)))
    new = Whitening(center, composed, whitening.kind, whitening.moved)
    foreign = (change > _FOREIGN) | (jnp.max(jnp.abs(shift)) > _FOREIGN)
    return new, again.whiten(whitened), foreign


def from_mode(target: Target, points: Float[Array, "n d"]) -> Whitening | Obstacle:
    """Laplace's approximation: the mode nearest the best particle, and the inverse Hessian there.

    L-BFGS (optax) from the particle of highest log-density, then Newton steps, which also need the
    Hessian, all in units of the particles' own spread, whose squares are in range. Runs eagerly.

    Returns:
        The whitening, or, when there is no such mode, the reason.

    Cost:
        One log-density of each particle, a few hundred gradients, and up to 20 Hessians of d
        gradients each.
    """
    # optax adds its own integers of two widths, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        mode, factor, distance, decrement, definite = _find_mode(target, points)
    refuse_traced("the search for a mode", (mode, decrement, definite))
    if not bool(definite):
        return Obstacle(4)
    if not float(decrement) <= _CLOSE_ENOUGH:
        return Obstacle(5, float(decrement) ** 0.5)
    moved = not float(distance) <= _FAR_AWAY
    return Whitening(mode, factor, "laplace", moved)


def start(whitening: Whitening, points: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Where the particles start, in whitened coordinates."""
    if whitening.moved:
        return from_particles(points).whiten(points)
    return whitening.whiten(points)


@eqx.filter_jit
def _find_mode(target: Target, given: Float[Array, "n d"]):
    about, unit = jnp.mean(given, axis=0), _spread(given - jnp.mean(given, axis=0)[None, :])
    points = (given - about[None, :]) / unit[None, :]

    def loss(point):
        return -target.log_density(about + unit * point)

    values = jax.vmap(loss)(points)
    begin = points[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))]

    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def descend(carry):
        index, point, state, _ = carry
        value, gradient = value_and_grad(point, state=state)
        step, state = optimizer.update(
            gradient, state, point, value=value, grad=gradient, value_fn=loss
        )
        return index + 1, point + step, state, jnp.any(step != 0)

    def descending(carry):
        index, _, _, moving = carry
        return (index < _MODE_STEPS) & moving

    first = (jnp.int32(0), begin, optimizer.init(begin), jnp.bool_(True))
    _, point, _, _ = jax.lax.while_loop(descending, descend, first)

    def newton_step(point):
        gradient, precision = jax.grad(loss)(point), _hessian(loss, point)
        # Unit diagonal before factoring: parameters differ in scale by orders of magnitude.
        scale = jnp.sqrt(jnp.abs(jnp.diagonal(precision)))
        scale = jnp.where(scale > 0, scale, 1)
        scaled = precision / (scale[:, None] * scale[None, :])
        lower = jnp.linalg.cholesky(scaled)
        definite = jnp.all(jnp.isfinite(lower))
        solved = jax.scipy.linalg.cho_solve((lower, True), gradient / scale) / scale
        return solved, gradient @ solved, precision, definite

    def refine(carry):
        index, point, solved, decrement, precision, definite = carry
        trial = point - solved
        better = newton_step(trial)
        accept = better[3] & (better[1] < decrement)
        kept = (solved, decrement, precision, definite)
        values = jax.tree.map(lambda new, old: jnp.where(accept, new, old), better, kept)
        return (
            jnp.where(accept, index + 1, _NEWTON_STEPS),
            jnp.where(accept, trial, point),
            *values,
        )

    def refining(carry):
        index, _, _, decrement, _, definite = carry
        return (index < _NEWTON_STEPS) & (decrement > _ARRIVED) & definite

    carry = (jnp.int32(0), point, *newton_step(point))
    _, point, _, decrement, precision, definite = jax.lax.while_loop(refining, refine, carry)
    factor, distance = _inverse_factor(point, precision, points)
    mode, factor = about + unit * point, unit[:, None] * factor
    return mode, factor, distance, decrement, definite & jnp.isfinite(decrement)


def _inverse_factor(mode, precision, points):
    """L with L L^T = precision^-1, lower triangular, and the rms distance of points in its units."""
    # The Cholesky factor from the last row up: precision = U U^T with U upper triangular.
    upper = jnp.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
    factor = solve_triangular(upper, jnp.eye(mode.shape[0], dtype=mode.dtype), lower=False).T
    z = Whitening(mode, factor, "laplace").whiten(points)
    return factor, jnp.sqrt(jnp.mean(z**2))


def _hessian(loss, point):
    hessian = jax.jacrev(jax.grad(loss))(point)
    return (hessian + hessian.T) / 2


def _moments(
    points: Float[Array, "n d"], about: Float[Array, " d"] | None = None
) -> tuple[Array, Array]:
    """The mean, and the spread about it (or about another point).

    The spread is the Cholesky factor of the covariance, or the standard deviations.
    """
    n, d = points.shape
    center = jnp.mean(points, axis=0)
    shifted = points - (center if about is None else about)[None, :]
    deviation = _spread(shifted)
    if n < _PARTICLES_PER_DIMENSION * d or d > _LARGEST_FULL_DIMENSION:
        return center, deviation
    standard = shifted / deviation[None, :]
    correlation = jnp.matmul(standard.T, standard, precision=jax.lax.Precision.HIGHEST) / n
    # Enough to factor exactly dependent parameters, far below any correlation that matters.
    ridge = 16 * d * float(jnp.finfo(points.dtype).eps)
    lower = jnp.linalg.cholesky(correlation + ridge * jnp.eye(d, dtype=points.dtype))
    factor = deviation[:, None] * lower
    return center, jnp.where(jnp.all(jnp.isfinite(lower)), factor, jnp.diag(deviation))


def _spread(shifted: Float[Array, "n d"]) -> Float[Array, " d"]:
    """The root of the mean square of each column, 1 where that is 0."""
    # In units of the largest: the squares of 1e-25 and of 1e20 are out of the range of float32.
    largest = jnp.max(jnp.abs(shifted), axis=0)
    unit = jnp.where(largest > jnp.finfo(shifted.dtype).tiny, largest, 1)
    spread = unit * jnp.sqrt(jnp.mean((shifted / unit[None, :]) ** 2, axis=0))
    return jnp.where(spread > 0, spread, 1)


def _times(vectors: Array, factor: Array, *, transpose: bool) -> Array:
    if factor.ndim == 1:
        return vectors * factor[None, :]
    matrix = factor.T if transpose else factor
    return jnp.matmul(vectors, matrix, precision=jax.lax.Precision.HIGHEST)

"""The user's function as a score of points: log-density or score, one particle or all, noisy or not."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memory import warn_caller
from svgd._run.checks import RunWarning
from svgd._run.layout import ParticleLayout

KINDS = ("auto", "log_density", "score")


class Target(eqx.Module):
    """A log-density or a score, told apart by the shape of what it returns.

    The function is called with one particle (the pytree without its leading axis) under `vmap`; or
    with all of them when `batched`. What it returns decides what it is:

    * a scalar for a particle (shape `(n,)` when batched) is a log-density, which is differentiated;
    * a pytree like the particle is a score.

    A single particle never is a bare scalar (`lay_out` asks for shape `(n, 1)`), so the two cannot
    be confused, but for a log-density that was meant to be summed over dimensions and is not: a
    caller who says which it is gets an error there. With a key, the function is called with
    `(particle, key)`, the same key for every particle of a step, so that all of them see the same
    minibatch.

    Attributes:
        fn: the function.
        layout: of the particles that it takes.
        batched: whether it takes all particles at once.
        is_log_density: what was found.
    """

    fn: Any
    layout: ParticleLayout = eqx.field(static=True)
    batched: bool = eqx.field(static=True)
    is_log_density: bool = eqx.field(static=True)

    def score(self, points: Float[Array, "n d"], key: Array | None) -> Float[Array, "n d"]:
        """The score of each point, in the layout's coordinates; NaN where a log-density is not finite."""
        if self.is_log_density:
            values, pullback = jax.vjp(lambda p: self.log_densities(p, key), points)
            (scores,) = pullback(jnp.ones_like(values))
            # A branch of NaN or -inf has derivative 0 whatever the point: particles would rest there, or
            # be pushed ever further out by the others, unseen.
            return jnp.where(jnp.isfinite(values)[:, None], scores, jnp.nan)
        if self.batched:
            return self.layout.ravel(self._call(self.layout.unravel(points), key))
        return jax.vmap(
            lambda p: self.layout.ravel_one(self._call(self.layout.unravel_one(p), key))
        )(points)

    def log_densities(self, points: Float[Array, "n d"], key: Array | None) -> Float[Array, " n"]:
        """The log-density of each point; only where the function is one."""
        if self.batched:
            return self._call(self.layout.unravel(points), key)
        return jax.vmap(lambda p: self.log_density(p, key))(points)

    def log_density(self, point: Float[Array, " d"], key: Array | None = None) -> Float[Array, ""]:
        """The log-density of one point; only where the function is one."""
        if self.batched:
            return self._call(self.layout.unravel(point[None, :]), key)[0]
        return self._call(self.layout.unravel_one(point), key)

    def _call(self, particle: Any, key: Array | None) -> Any:
        return self.fn(particle) if key is None else self.fn(particle, key)


def as_target(
    fn: Callable,
    layout: ParticleLayout,
    points: Float[Array, "n d"],
    key: Array | None,
    batched: bool,
    kind: str = "auto",
) -> Target:
    """Finds out what `fn` is, without running it.

    Raises:
        ValueError: if what it returns is neither a log-density nor a score of these particles, or
            not the one that `kind` names, with the shapes returned and expected; if it is of
            another dtype than the particles; on another `kind`.
        TypeError: if it is not callable.

    Warns:
        RunWarning: where one array was returned for one array, and only `kind` could tell a score from a
            log-density whose sum was left out.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    if not callable(fn):
        raise TypeError(f"the log-density or score must be callable, got {type(fn).__name__}")
    count = points.shape[0]
    if batched:
        example, scalar = jax.eval_shape(layout.unravel, points), (count,)
    else:
        one = jax.ShapeDtypeStruct(points.shape[1:], points.dtype)
        example, scalar = jax.eval_shape(layout.unravel_one, one), ()
    arguments = (example,) if key is None else (example, key)
    try:
        out = eqx.filter_eval_shape(fn, *arguments)
    except Exception as error:
        given = "all particles" if batched else "one particle"
        hint = (
            " It is called for each particle under vmap; pass batched=True if it takes all of them"
            " at once."
            if not batched
            else ""
        )
        wants = (
            " A stochastic function takes (particle, key): pass key= to run."
            if key is None
            else " With key=, it is called with (particle, key)."
        )
        error.add_note(
            f"raised by the log-density or score when called with {given}, {_shapes(example)}."
            + hint
            + wants
        )
        raise
    is_log_density = eqx.is_array_like(out) or isinstance(out, jax.ShapeDtypeStruct)
    is_log_density = is_log_density and jnp.shape(out) == scalar
    is_score = not is_log_density and _shapes(out) == _shapes(example)
    if not (is_log_density or is_score) or kind not in (
        "auto",
        "log_density" if is_log_density else "score",
    ):
        expected = [
            f"{shape} (a {name.replace('_', '-')})"
            for name, shape in (("log_density", scalar), ("score", _shapes(example)))
            if kind in ("auto", name)
        ]
        hint = "" if batched else " If it takes all particles at once, pass batched=True."
        if is_score:
            hint = " Was a sum over the dimensions of a particle left out?"
        raise ValueError(
            f"the function returns {_shapes(out)} for {'all particles' if batched else 'one particle'}"
            f" of shape {_shapes(example)}: expected shape {' or '.join(expected)}.{hint}"
        )
    for leaf in jax.tree.leaves(out):
        if leaf.dtype != points.dtype:
            what = "log-density" if is_log_density else "score"
            raise ValueError(
                f"the {what} returns {leaf.dtype} for particles of {points.dtype}: cast the data or"
                " the particles so that both agree"
            )
    if is_score and kind == "auto" and jax.tree_util.treedef_is_leaf(layout.treedef):
        warn_caller(
            f"the function returns shape {_shapes(out)}, that of its argument, and is taken for a score: "
            'say kind="score", or sum over the dimensions if it is a log-density',
            RunWarning,
        )
    return Target(fn, layout, batched, is_log_density)


def _shapes(tree: Any) -> Any:
    """Shapes of a pytree, as a pytree that compares and prints: a bare tuple for one array."""
    leaves, treedef = jax.tree.flatten(tree)
    shapes = [tuple(jnp.shape(leaf)) for leaf in leaves]
    if jax.tree_util.treedef_is_leaf(treedef):
        return shapes[0]
    return jax.tree.unflatten(treedef, [str(shape) for shape in shapes])

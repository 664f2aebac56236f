"""The start of a run: points in whitened coordinates, inside of the support of the distribution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from memory import warn_caller
from svgd._run import whitening as _whitening
from svgd._run.checks import RunWarning
from svgd._run.layout import ParticleLayout
from svgd._run.state import first_key
from svgd._run.target import Target


def begin(
    optimizer: optax.GradientTransformation,
    target: Target,
    whitening: _whitening.Whitening,
    points: Float[Array, "n d"],
    key: Array | None,
) -> tuple[Float[Array, "n d"], PyTree]:
    """Points in whitened coordinates and the optimiser's state for them.

    Raises:
        ValueError: names the first particle to start where a log-density is not finite.

    Warns:
        RunWarning: where all particles are in one place.
    """
    # A score's program serves every score.
    judge = target if target.is_log_density else None
    z, opt_state, outside, together = _begin(optimizer, judge, whitening, points, first_key(key))
    _check_support(outside, target.layout, len(points), whitening.moved)
    if len(points) > 1 and not isinstance(together, jax.core.Tracer) and bool(together):
        warn_caller(
            f"all {len(points)} particles start in one place, where every update moves them alike: they "
            "will stay together. Spread them, by random numbers of about the posterior's size",
            RunWarning,
        )
    return z, opt_state


# One program for the start of a run, where every operation would be one by itself.
@eqx.filter_jit
def _begin(
    optimizer: optax.GradientTransformation,
    log_density: Target | None,
    whitening: _whitening.Whitening,
    points: Array,
    key: Array | None,
):
    """What `begin` returns, what `_check_support` looks at, and whether all points are one."""
    z = _whitening.start(whitening, points)
    outside = None
    if log_density is not None:
        starts = whitening.unwhiten(z)
        values = log_density.log_densities(starts, key)
        bad = ~jnp.isfinite(values)
        first = jnp.argmax(bad)
        outside = jnp.sum(bad), first, values[first], starts[first]
    return z, optimizer.init(z), outside, jnp.all(points == points[:1])


def _check_support(outside, layout: ParticleLayout, count: int, moved: bool) -> None:
    """Raises ValueError that names the first particle to start where a log-density is not finite.

    Args:
        outside: how many there are, the first of them, its log-density and its point; or None.
        layout: of the particles.
        count: of the particles.
        moved: whether they were mapped onto the mode.
    """
    if outside is None or isinstance(outside[0], jax.core.Tracer) or int(outside[0]) == 0:
        return
    bad, first, value, point = (np.asarray(part) for part in outside)
    particle = layout.shown(jnp.asarray(point))
    mapped, nearer = "", ""
    if moved:
        mapped = ", which were mapped onto the mode"
        nearer = ', near the mode, or take whiten="particles"'
    raise ValueError(
        f"the log-density is not finite at {bad} of the {count} particles to start from{mapped}; the "
        f"first is particle {first}, {particle}, where it is {value}. A particle outside of the "
        f"support has no score that leads back: start inside{nearer}, or sample parameters without "
        "bounds, such as logarithms"
    )

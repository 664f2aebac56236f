"""Particles and scores as arrays, or an error that says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from memory import checked_floats


def checked_particles(
    particles: ArrayLike, scores: ArrayLike
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Both as floating arrays (n, d) of one dtype, or a ValueError that says what is wrong."""
    particles = checked_rows("particles", particles)
    scores = _one_array("scores", scores)
    if scores.shape != particles.shape:
        raise ValueError(
            f"scores must have the shape of the particles {particles.shape}, got {scores.shape}"
        )
    if scores.dtype != particles.dtype:
        raise ValueError(
            f"particles have dtype {particles.dtype} but scores {scores.dtype}: cast one of them"
        )
    check_finite("scores", scores)
    return particles, scores


def checked_rows(name: str, rows: ArrayLike) -> Float[Array, "n d"]:
    """A floating array (n, d) of finite values, or a ValueError that says what is wrong."""
    rows = _one_array(name, rows)
    if rows.ndim != 2:
        raise ValueError(
            f"{name} must have shape (n, d), got {rows.shape}; one particle is "
            f"{name}[None, :], one dimension {name}[:, None]"
        )
    if rows.size == 0:
        raise ValueError(f"{name} are empty, shape {rows.shape}: give at least one")
    check_finite(name, rows)
    return rows


def check_finite(name: str, rows: Array) -> None:
    """Raises ValueError that names the first row with NaN or infinity; traced values pass."""
    if isinstance(rows, jax.core.Tracer):
        return
    if not sum_is_finite(rows):
        bad = np.flatnonzero(~np.isfinite(np.asarray(rows)).all(axis=1))
        if bad.size:
            raise ValueError(
                f"{name} must be finite: {bad.size} of {rows.shape[0]} rows hold NaN or infinity, "
                f"the first is row {bad[0]}: {np.asarray(rows[bad[0]])}"
            )


def _one_array(name: str, rows: ArrayLike) -> Array:
    if isinstance(rows, dict):
        raise ValueError(
            f"{name} must be one array (n, d), got a dictionary of {sorted(rows)}: `SVGD.run` takes pytrees"
        )
    return checked_floats(name, rows)


def sum_is_finite(rows: Array) -> bool:
    """True unless an entry is not finite, or the sum overflows: one pass over concrete values."""
    if rows.is_fully_addressable and _in_host_memory(rows):
        # Read in place, without a program for every shape.
        with np.errstate(invalid="ignore", over="ignore"):
            return bool(np.isfinite(np.sum(np.asarray(rows))))
    # On the device, without a copy; at once even where concrete rows are closed over by a function
    # that is being traced.
    with jax.ensure_compile_time_eval():
        return bool(jnp.isfinite(jnp.sum(rows)))


def _in_host_memory(rows: Array) -> bool:
    return all(device.platform == "cpu" for device in rows.devices())

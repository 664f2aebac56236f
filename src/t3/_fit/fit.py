"""Fit a Tucker tensor train to measurements."""

import math
import operator
import os
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh
from jaxtyping import Array

from t3._fit import geometry as _geometry
from t3._fit.loop import Run, Settings, Watch
from t3._fit.problem import check_sweeps_fit, least_squares
from t3._fit.result import FitResult, Record
from t3._sampling.chunk_size import ChunkSize
from t3._sampling.kinds import Sampling
from t3._tensor.format import TuckerTensorTrain

# Steps when the caller does not say.
MAX_STEPS = {"newton_cg": 50, "gradient_descent": 500, "mc_sgd": 3000, "adam": 2000}

_STOCHASTIC = ("mc_sgd", "adam")
# Options that only some methods read.
_READ_BY = {
    "batch_size": _STOCHASTIC,
    "check_every": _STOCHASTIC,
    "gradient_tolerance": ("newton_cg", "gradient_descent"),
    "max_cg_steps": ("newton_cg",),
    "forcing_power": ("newton_cg",),
    "resident": ("newton_cg",),
    "learning_rate": ("adam",),
    "optimizer": ("adam",),
}


def fit(
    x0: TuckerTensorTrain,
    sampling: Sampling,
    data: Any,
    *,
    method: str = "newton_cg",
    geometry: str | None = None,
    chunk_size: ChunkSize = "auto",
    key: Array | None = None,
    batch_size: int | None = None,
    max_steps: int | None = None,
    gradient_tolerance: float | None = None,
    max_cg_steps: int | None = None,
    forcing_power: float | None = None,
    weight: Any = None,
    regularizer: float | None = None,
    learning_rate: float | None = None,
    optimizer: Any = None,
    check_every: int | None = None,
    validation: tuple[Sampling, Any] | None = None,
    patience: int | None = None,
    resident: bool = False,
    mesh: Mesh | None = None,
    axis: str | None = None,
    progress: bool = False,
    callback: Callable[[Record, TuckerTensorTrain], bool | None] | None = None,
    checkpoint: str | os.PathLike | None = None,
    resume: FitResult | None = None,
) -> FitResult:
    """Minimise ``1/2 |w (samples(x) - data)|^2 + regularizer/2 |x|^2`` over tensors of fixed ranks.

    Args:
        x0: start; its ranks, storage and dtype are kept. On the manifold a start above its minimal
            ranks is reduced to them first. Zero is a good start there (not corewise, where the
            gradient of a product of zeros is zero).
        sampling: `t3.Probe`, `t3.Apply` or `t3.Entries`, plain or with derivatives.
        data: in the shapes that the function of the sampling returns.
        method: ``"newton_cg"`` Gauss-Newton with truncated conjugate gradients and a line search;
            ``"gradient_descent"`` steepest descent with a line search; ``"mc_sgd"`` minibatch steps
            of Cauchy length, nothing to tune; ``"adam"`` optax on the cores.
        geometry: ``"manifold"`` (the default but for adam) or ``"corewise"``.
        chunk_size: probes worked on at a time; None for all, ``"auto"`` from the sizes. The result
            depends on it by rounding only.
        key: for minibatches. Default ``jax.random.key(0)``.
        batch_size: probes of a minibatch; default 256, at most all.
        max_steps: default 50 for newton_cg, 500 for gradient_descent, 3000 for mc_sgd, 2000 for
            adam.
        gradient_tolerance: newton_cg and gradient_descent stop when the gradient norm is below this
            times that of the start; default 1e-8.
        max_cg_steps: Gauss-Newton products in one step of newton_cg; default 200.
        forcing_power: newton_cg solves to ``min(1/2, (|g| / |g_0|)^forcing_power)``; default 1/2.
        weight: factors of the residual: a number, ``(K + 1,)`` by order, for probes ``(d, K + 1)``
            by mode and order, or ``(d,)`` by mode where there are no orders.
        regularizer: Tikhonov factor, not negative.
        learning_rate: of adam, decays to zero by a cosine over max_steps; default 1e-2.
        optimizer: an optax transformation in place of adam.
        check_every: steps of mc_sgd and adam between looks at all data; default 25.
        validation: ``(sampling, data)`` held out; its relative error is recorded.
        patience: stop when the validation error has not fallen for so many records; the result is
            the best point of the validation then.
        resident: newton_cg keeps the sweeps over the frame between the Gauss-Newton products of a
            step, about ``2 (K + 1) (r + n)`` numbers for each probe and mode. Equal results. Making
            them anew costs about what reading them does: of a product at d 5, N 50, n = r 20, K 2,
            W 4096, float64, two cores, it saved 10 % in packed storage (0.44 for 0.49 s, 34 MiB
            kept) and nothing in ragged (0.38 s). Worth a try where memory is faster than that.
        mesh: devices, of this process or of many, to share the probes out over. Each works through
            its own share in chunks; every gradient, product and objective ends in one all-reduce.
            Samples and data may be whole in every process, or already split along the first probe
            axis (only then does no device of the others see them).
        axis: of the mesh; may be left out where it has one. Minibatches are drawn by every device
            from its own share, so their steps differ from those on one device by the draw.
        progress: print a line for each record (in the first of many processes).
        callback: called with each record and its point, in every process; return True to stop,
            then in all of them.
        checkpoint: file that the state is written to after every step (mc_sgd and adam: after every
            look), by the first process. `t3.FitResult.load` reads it for `resume`, on any number of
            devices.
        resume: an earlier result of the same call, to go on from as if it had not stopped.

    Returns:
        `FitResult` with the point, the history, and why it stopped. KeyboardInterrupt gives the
        best point so far.

    Raises:
        ValueError: shapes that do not fit, unknown names, numbers out of range, options that the
            method does not read, sweeps to keep that exceed the memory.
        FitError: the objective became infinite or NaN; ``error.result`` has the last good point.

    Cost: newton_cg a pass over the probes (forward and transpose) for every Gauss-Newton product
        and gradient, a forward pass for every trial point. Memory of one chunk beyond the data.
    """
    if not isinstance(x0, TuckerTensorTrain):
        raise ValueError(
            f"x0 must be a t3.TuckerTensorTrain, got {type(x0).__name__}; "
            "TuckerTensorTrain.from_dense makes one of an array."
        )
    if method not in MAX_STEPS:
        raise ValueError(f"method must be one of {sorted(MAX_STEPS)}, got {method!r}.")
    given = {
        "batch_size": batch_size,
        "check_every": check_every,
        "gradient_tolerance": gradient_tolerance,
        "max_cg_steps": max_cg_steps,
        "forcing_power": forcing_power,
        "resident": resident or None,
        "learning_rate": learning_rate,
        "optimizer": optimizer,
    }
    for name, value in given.items():
        if value is not None and method not in _READ_BY[name]:
            raise ValueError(
                f"{name}= is of method {' and '.join(_READ_BY[name])}, got method={method!r}: leave "
                "it out."
            )
    if optimizer is not None and learning_rate is not None:
        raise ValueError(
            "learning_rate= is of adam; an optimizer= brings its own: give one of them."
        )
    if validation is None and patience is not None:
        raise ValueError("patience= waits for a validation error to fall: give validation=.")
    if validation is not None and not (
        isinstance(validation, tuple | list) and len(validation) == 2
    ):
        raise ValueError(
            f"validation must be a pair (sampling, data), got {type(validation).__name__}."
        )
    if not (resume is None or isinstance(resume, FitResult)):
        raise ValueError(
            f"resume must be a t3.FitResult, got {type(resume).__name__}; t3.FitResult.load reads one."
        )
    steps = checked_number("max_steps", max_steps, 0, MAX_STEPS[method])
    batch_size = checked_number("batch_size", batch_size, 1, 256)
    check_every = checked_number("check_every", check_every, 1, 25)
    max_cg_steps = checked_number("max_cg_steps", max_cg_steps, 1, 200)
    if patience is not None:
        patience = checked_number("patience", patience, 1)
    gradient_tolerance = checked_number("gradient_tolerance", gradient_tolerance, 0.0, 1e-8)
    forcing_power = checked_number("forcing_power", forcing_power, 0.0, 0.5)
    learning_rate = checked_number("learning_rate", learning_rate, 0.0, 1e-2)
    if geometry is None:
        geometry = "corewise" if method == "adam" else "manifold"
    geometry = _geometry.checked_geometry(geometry)
    if method == "adam" and geometry == "manifold":
        raise ValueError(
            "adam scales single core entries, which has no meaning on the manifold: use geometry="
            '"corewise", or method="mc_sgd".'
        )
    x = x0.squash()
    if geometry == "manifold" and x.minimal_ranks != (x.tucker_ranks, x.tt_ranks):
        x = x.round(ranks=x.minimal_ranks)
    batch = batch_size if method in _STOCHASTIC else None
    problem = least_squares(
        x,
        sampling,
        data,
        weight=weight,
        ridge=regularizer,
        chunk_size=chunk_size,
        batch_size=batch,
        mesh=mesh,
        axis=axis,
    )
    if resident:
        check_sweeps_fit(problem, geometry, x)
    held_out = None
    if validation is not None:
        held_out = least_squares(
            x, *validation, weight=weight, chunk_size=chunk_size, mesh=mesh, axis=axis
        )
    if method == "adam" and optimizer is None:
        import optax

        optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, max(steps, 1)))
    settings = Settings(
        method,
        geometry,
        steps,
        gradient_tolerance,
        max_cg_steps,
        forcing_power,
        resident,
        min(batch or 0, problem.measured.probes.count),
        check_every,
        optimizer,
    )
    watch = Watch(callback, progress, patience, checkpoint)
    run = Run(problem, held_out, settings, key, watch)
    return run.go(run.start(x) if resume is None else run.restored(x, resume))


def checked_number(name: str, value: Any, least: Any, default: Any = None) -> Any:
    """The default for None, else the value as a number of the type of `least`.

    Raises:
        ValueError: when it is smaller, NaN, or an integer is asked for and it is none.
    """
    if value is None:
        value = default
    whole = isinstance(least, int)
    try:
        number = operator.index(value) if whole else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= least:
        kind = "an integer" if whole else "a number"
        raise ValueError(f"{name} must be {kind} from {least} on, got {value!r}.")
    return number

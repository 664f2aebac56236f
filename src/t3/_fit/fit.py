"""Fit a Tucker tensor train to measurements."""

from typing import Any

from t3._fit.fingerprint import fingerprint
from t3._fit.loop import Run
from t3._fit.methods.minibatch import Minibatch
from t3._fit.options import Objective, Told, Watch, checkpoint_of, told
from t3._fit.result import FitResult
from t3._sampling.kinds import Sampling
from t3._tensor.format import TuckerTensorTrain


def fit(
    x0: TuckerTensorTrain,
    sampling: Sampling,
    data: Any,
    *,
    method: Any = "newton_cg",
    objective: Objective | None = None,
    validation: Any = None,
    watch: Watch | None = None,
    devices: Any = None,
    resume: FitResult | None = None,
    **options: Any,
) -> FitResult:
    """Minimise ``1/2 |w (samples(x) - data)|^2 + regularizer/2 |x|^2`` over tensors of fixed ranks.

    It computes in units of the data: a fit of ``1e-20 data`` is ``1e-20`` times the fit of ``data``.

    Args:
        x0: start; its ranks, storage and dtype are kept. On the manifold a start above its minimal
            ranks is reduced to them first. Zero is a good start there (not corewise, where the
            gradient of a product of zeros is zero).
        sampling: `t3.Probe`, `t3.Apply` or `t3.Entries`, plain or with derivatives.
        data: in the shapes that the function of the sampling returns.
        method: a `t3.Method`: `t3.NewtonCG` Gauss-Newton with truncated conjugate gradients and a
            line search; `t3.GradientDescent` steepest descent with a line search; `t3.MCSGD`
            minibatch steps of Cauchy length, nothing to tune; `t3.Adam` optax on the cores. A string,
            ``"newton_cg"``, ``"gradient_descent"``, ``"mc_sgd"`` or ``"adam"``, stands for its
            defaults.
        objective: `t3.Objective`: weights, regularizer, size of chunks.
        validation: `t3.HeldOut`, or a pair ``(sampling, data)``: its relative error is recorded.
        watch: `t3.Watch`: callback, progress, checkpoint.
        devices: a mesh of devices, of this process or of many, to share the probes out over. Each
            works through its own share in chunks; every gradient, product and objective ends in one
            all-reduce. Samples and data may be whole in every process, or already split along the
            first probe axis (only then does no device of the others see them). Minibatches are
            drawn by every device from its own share, so their steps differ from those on one device
            by the draw.
        resume: an earlier result of the same call, to go on from as if it had not stopped. One of
            other data, samples or another method is refused.
        **options: the short form of all these: options of `t3.Objective`, `t3.Watch`, of `t3.HeldOut`
            (`patience`), of the method where it is a string, and ``mesh=, axis=`` for `devices`. So
            ``t3.fit(x0, sampling, data, max_steps=5, weight=w)``.

    Returns:
        `FitResult` with the point, the history, and why it stopped. KeyboardInterrupt gives the
        best point so far.

    Raises:
        ValueError: shapes that do not fit, numbers out of range, options that the method does not
            have.
        TypeError: an option that there is not.
        FitError: the objective became infinite or NaN; ``error.result`` has the last good point.
        CheckpointError: the last checkpoint could not be written; ``error.result`` has it.

    Warns:
        UselessFitWarning: the result explains its data, or those held out, no better than zero.

    Cost: newton_cg a pass over the probes (forward and transpose) for every Gauss-Newton product
        and gradient, a forward pass for every trial point. Memory of one chunk beyond the data.
    """
    given = told(method, objective, validation, watch, devices, options)
    if not isinstance(x0, TuckerTensorTrain):
        raise ValueError(
            f"x0 must be a t3.TuckerTensorTrain, got {type(x0).__name__}; "
            "TuckerTensorTrain.from_dense makes one of an array."
        )
    if not (resume is None or isinstance(resume, FitResult)):
        raise ValueError(
            f"resume must be a t3.FitResult, got {type(resume).__name__}; t3.FitResult.load reads one."
        )
    run = prepared(x0, sampling, data, given)
    return run.go(run.start(x0) if resume is None else run.restored(resume))


def prepared(x0: TuckerTensorTrain, sampling: Sampling, data: Any, given: Told) -> Run:
    """A fit that has not started."""
    method, objective, validation, watch, split = given
    checkpoint = checkpoint_of(watch)
    batch = method.batch_size if isinstance(method, Minibatch) else None
    x = method.geometry.start(x0)
    problem, units = objective.problem(x, sampling, data, split, batch)
    held_out = None
    if validation is not None:
        held_out = validation.problem(x, objective, split, units)
    about = fingerprint(problem, sampling, method, held_out, (units, *x.sizes))
    patience = None if validation is None else validation.patience
    return Run(problem, method, units, held_out, patience, watch, checkpoint, about)

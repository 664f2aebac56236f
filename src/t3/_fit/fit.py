"""Fit a Tucker tensor train to measurements."""

from typing import Any

from memory import warn_caller
from t3._fit.fingerprint import fingerprint
from t3._fit.loop import Run
from t3._fit.methods.minibatch import Minibatch
from t3._fit.objective import Objective
from t3._fit.options import Told, Watch, told
from t3._fit.outcome import StopReason
from t3._fit.result import FitResult, UselessFitWarning
from t3._fit.start import FromData
from t3._fit.validation import HeldOut
from t3._sampling.sampling import Sampling
from t3._tensor.format import TuckerTensorTrain


def fit(
    x0: Any,
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
        x0: start, or ranks ``(tucker_ranks, tt_ranks)`` or a `t3.FromData` for one made from the
            data. Of a tensor its ranks, storage and dtype are kept. On the manifold a start above
            its minimal ranks is reduced to them first. Corewise zero is no start, for the gradient of
            a product of zeros is zero.
        sampling: `t3.Probe`, `t3.Apply` or `t3.Entries`, plain or with derivatives.
        data: in the shapes that the function of the sampling returns.
        method: a `t3.Method`: `t3.NewtonCG` Gauss-Newton with truncated conjugate gradients and a
            line search; `t3.GradientDescent` steepest descent with a line search; `t3.MCSGD`
            minibatch steps of Cauchy length, nothing to tune; `t3.Adam` optax on the cores. A string,
            ``"newton_cg"``, ``"gradient_descent"``, ``"mc_sgd"`` or ``"adam"``, stands for its
            defaults.
        objective: `t3.Objective`: weights, regularizer, size of chunks.
        validation: a pair ``(sampling, data)`` or `t3.HeldOut`, whose relative error is recorded; a
            fraction, or `t3.SplitOff`, holds a part of the samples out.
        watch: `t3.Watch`: callback, progress, checkpoint.
        devices: `memory.Devices`, or a mesh of one axis: devices, of this process or of many, to share
            the probes out over. Each works through its own share in chunks; every gradient, product
            and objective ends in one all-reduce. Samples and data may be whole in every process, or
            already split along the first probe axis (only then does no device of the others see
            them). Minibatches are drawn by every device from its own share, so their steps differ
            from those on one device by the draw.
        resume: an earlier result of the same call, to go on from as if it had not stopped. One of
            other data, samples or another method is refused.
        **options: the short form of all these: options of `t3.Objective`, `t3.Watch`, of a validation
            (`patience`), of the method where it is a string, of a start from the data (``ranks=,
            shape=``), and ``mesh=, axis=`` for `devices`. So ``t3.fit(x0, sampling, data,
            max_steps=5, weight=w)``.

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
    given = told(x0, method, objective, validation, watch, devices, options)
    if not (resume is None or isinstance(resume, FitResult)):
        raise ValueError(
            f"resume must be a t3.FitResult, got {type(resume).__name__}; t3.FitResult.load reads one."
        )
    if given.validation is not None:
        sampling, data, held_out = given.validation.split(sampling, data)
        given = given._replace(validation=held_out)
    start = given.start
    if isinstance(start, FromData) and resume is not None:
        start = resume.current
    elif isinstance(start, FromData):
        start = start.tensor(sampling, data, given.objective, given.split)
    checkpoint = given.watch.file()
    result = run(start, sampling, data, given, checkpoint, resume)
    if result.useless:
        warn_useless(f"{result.history[result.best]} ({result.reason})", result.reason)
    if checkpoint is not None:
        checkpoint.finish(result)
    return result


def run(
    start: TuckerTensorTrain,
    sampling: Sampling,
    data: Any,
    given: Told,
    checkpoint: Any,
    resume: FitResult | None,
) -> FitResult:
    """A fit from a tensor, told what it needs, that writes itself to a checkpoint."""
    method, split, held_out = given.method, given.split, given.validation
    batch = method.batch_size if isinstance(method, Minibatch) else None
    x = method.geometry.start(start)
    problem, units = given.objective.problem(x, sampling, data, split, batch)
    patience = None
    if isinstance(held_out, HeldOut):
        patience = held_out.patience
        held_out = held_out.problem(x, given.objective, split, units)
    about = fingerprint(problem, sampling, method, held_out, units, x.sizes)
    loop = Run(problem, method, units, held_out, patience, given.watch, checkpoint, about)
    return loop.go(loop.start(start) if resume is None else loop.restored(resume))


def warn_useless(what: str, reason: StopReason) -> None:
    """Warn, at the line that called this package, of a result that is worth nothing."""
    warn_caller(
        f"the fit explains its data, or those held out, no better than zero does: {what}. "
        f"{reason.advice}",
        UselessFitWarning,
    )

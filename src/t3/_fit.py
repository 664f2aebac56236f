"""Fit a Tucker tensor train to measurements."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _first_order, _geometry, _newton
from ._chunk_size import ChunkSize
from ._fit_result import FitError, FitResult, Record
from ._format import TuckerTensorTrain
from ._problem import LeastSquares, least_squares
from ._samples import Sampling

# Steps when the caller does not say.
MAX_STEPS = {"newton_cg": 50, "gradient_descent": 500, "mc_sgd": 3000, "adam": 2000}


class Settings(NamedTuple):
    """What a step may need to know; see `fit`."""

    method: str
    geometry: str
    max_steps: int
    gradient_tolerance: float
    max_cg_steps: int
    forcing_power: float
    batch_size: int
    check_every: int
    optimizer: Any


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
    gradient_tolerance: float = 1e-8,
    max_cg_steps: int = 200,
    forcing_power: float = 0.5,
    weight: Any = None,
    regularizer: float | None = None,
    learning_rate: float = 1e-2,
    optimizer: Any = None,
    check_every: int = 25,
    validation: tuple[Sampling, Any] | None = None,
    patience: int | None = None,
    progress: bool = False,
    callback: Callable[[Record, TuckerTensorTrain], bool | None] | None = None,
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
        gradient_tolerance: stop when the gradient norm is below this times that of the start.
        max_cg_steps: Gauss-Newton products in one step of newton_cg.
        forcing_power: newton_cg solves to ``min(1/2, (|g| / |g_0|)^forcing_power)``.
        weight: factors of the residual: a number, ``(K + 1,)`` by order, for probes ``(d, K + 1)``
            by mode and order, or ``(d,)`` by mode where there are no orders.
        regularizer: Tikhonov factor, not negative.
        learning_rate: of adam, decays to zero by a cosine over max_steps.
        optimizer: an optax transformation in place of adam.
        check_every: steps of mc_sgd and adam between looks at all data.
        validation: ``(sampling, data)`` held out; its relative error is recorded.
        patience: stop when the validation error has not fallen for so many records; the result is
            the best point of the validation then.
        progress: print a line for each record.
        callback: called with each record and its point; return True to stop.
        resume: an earlier result of the same call, to go on from as if it had not stopped.

    Returns:
        `FitResult` with the point, the history, and why it stopped. KeyboardInterrupt gives the
        best point so far.

    Raises:
        ValueError: shapes that do not fit, unknown names.
        FitError: the objective became infinite or NaN; ``error.result`` has the last good point.

    Cost: newton_cg a pass over the probes (forward and transpose) for every Gauss-Newton product
        and gradient, a forward pass for every trial point. Memory of one chunk beyond the data.
    """
    if method not in MAX_STEPS:
        raise ValueError(f"method must be one of {sorted(MAX_STEPS)}, got {method!r}.")
    if optimizer is not None and method != "adam":
        raise ValueError(f'optimizer= needs method="adam", got method={method!r}.')
    if geometry is None:
        geometry = "corewise" if method == "adam" else "manifold"
    geometry = _geometry.checked_geometry(geometry)
    if method == "adam" and geometry == "manifold":
        raise ValueError(
            "adam scales single core entries, which has no meaning on the manifold: use geometry="
            '"corewise", or method="mc_sgd".'
        )
    stochastic = method in ("mc_sgd", "adam")
    x = x0.squash()
    if geometry == "manifold" and x.minimal_ranks != (x.tucker_ranks, x.tt_ranks):
        x = x.round(ranks=x.minimal_ranks)
    batch = batch_size or 256 if stochastic else None
    problem = least_squares(
        x,
        sampling,
        data,
        weight=weight,
        ridge=regularizer,
        chunk_size=chunk_size,
        batch_size=batch,
    )
    held_out = None
    if validation is not None:
        held_out = least_squares(x, *validation, weight=weight, chunk_size=chunk_size)
    steps = MAX_STEPS[method] if max_steps is None else max_steps
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
        min(batch or 0, problem.measured.probes.count),
        check_every,
        optimizer,
    )
    run = _Run(problem, held_out, settings, key, callback, progress, patience)
    return run.go(run.start(x) if resume is None else run.restored(x, resume))


class _Run:
    """One fit in progress: the loop on the host around compiled steps."""

    def __init__(
        self, problem: LeastSquares, held_out, settings, key, callback, progress, patience
    ):
        self.problem, self.held_out, self.settings = problem, held_out, settings
        self.key = jax.random.key(0) if key is None else key
        self.callback, self.progress, self.patience = callback, progress, patience
        self.scale = float(problem.data_square()) / 2
        self.held_out_scale = None if held_out is None else float(held_out.data_square()) / 2

    def start(self, x: TuckerTensorTrain) -> FitResult:
        """Where nothing has happened yet."""
        memory = {"reference": jnp.zeros((), x.dtype)}
        if self.settings.method == "adam":
            with jax.numpy_dtype_promotion("standard"):  # optax counts on it
                memory["optimizer"] = self.settings.optimizer.init(x)
        return FitResult(x, (), "not started", x, memory)

    def restored(self, x: TuckerTensorTrain, earlier: FitResult) -> FitResult:
        """An earlier result, its state in the structures of this call."""
        fresh = self.start(x)
        want, have = jax.tree.leaves(fresh.memory), jax.tree.leaves(earlier.memory)
        shapes = [a.shape for a in want] == [jnp.shape(a) for a in have]
        if earlier.current.sizes != x.sizes or len(want) != len(have) or not shapes:
            raise ValueError(
                "resume must come from a fit with the same method and ranks; its state does not fit."
            )
        memory = jax.tree.unflatten(
            jax.tree.structure(fresh.memory),
            [jnp.asarray(a, b.dtype) for a, b in zip(have, want, strict=True)],
        )
        return FitResult(
            earlier.x, earlier.history, earlier.reason, earlier.current, memory, earlier.step
        )

    def go(self, state: FitResult) -> FitResult:
        """Steps until a reason to stop."""
        try:
            while True:
                state, reason = self.advance(state)
                if reason is not None:
                    return state._replace(reason=reason)
        except KeyboardInterrupt:
            return state._replace(reason="interrupted")

    def advance(self, state: FitResult) -> tuple[FitResult, str | None]:
        stochastic = self.settings.method in ("mc_sgd", "adam")
        return (self._stochastic if stochastic else self._full)(state)

    def _full(self, state: FitResult) -> tuple[FitResult, str | None]:
        """One step of newton_cg or gradient_descent, and the record of the point it starts from."""
        s, x = self.settings, state.current
        local = _newton.look(self.problem, s.geometry, x)
        value, norm = float(local.objective), float(local.gradient_norm)
        first = state.step == 0
        reference = local.gradient_norm if first else state.memory["reference"]
        reason = self._converged(value, norm, float(reference), first, state)
        detail = {}
        moved = None
        if reason is None and state.step < s.max_steps:
            if s.method == "newton_cg":
                moved, detail = _newton.newton_step(
                    self.problem,
                    s.geometry,
                    x,
                    local,
                    reference,
                    max_cg_steps=s.max_cg_steps,
                    forcing_power=s.forcing_power,
                )
            else:
                moved, detail = _first_order.descent_step(self.problem, s.geometry, x, local)
            detail = {name: np.asarray(value).item() for name, value in detail.items()}
        elif reason is None:
            reason = "step limit reached"
        known = {record.step for record in state.history}
        stop = None
        if state.step not in known:
            state, stop = self._recorded(state, x, value, norm, detail)
        reason = reason or stop
        if reason is not None or moved is None:
            return state, reason
        if not bool(moved.accepted):
            return state, "line search found no decrease"
        memory = {**state.memory, "reference": reference}
        return state._replace(current=moved.x, memory=memory, step=state.step + 1), None

    def _converged(self, value, norm, reference, first, state) -> str | None:
        if not np.isfinite(value) or not np.isfinite(norm):
            raise FitError(
                f"The objective is {value} and the gradient norm {norm} at step {state.step}. Data or "
                f"start with NaN, or scales that overflow {self.problem.dtype}, are the usual causes. "
                f"error.result has the last good point.",
                state._replace(reason="objective not finite"),
            )
        eps = float(jnp.finfo(self.problem.dtype).eps)
        if self.problem.ridge is None and value <= eps**2 * self.scale:
            return "residual is zero at the start" if first else "residual is zero to rounding"
        if norm == 0:
            return "gradient is zero at the start" if first else "gradient is zero"
        if norm <= self.settings.gradient_tolerance * reference:
            return "gradient tolerance reached"
        return None

    def _stochastic(self, state: FitResult) -> tuple[FitResult, str | None]:
        """Minibatch steps up to the next look at all data."""
        s, x, memory = self.settings, state.current, state.memory
        if not state.history:
            local = _newton.look(self.problem, s.geometry, x)
            value, norm = float(local.objective), float(local.gradient_norm)
            reason = (
                self._converged(value, norm, norm, True, state)
                if norm == 0 or value == 0 or (not np.isfinite(value))
                else None
            )
            state, stop = self._recorded(state, x, value, norm, {})
            if reason or stop:
                return state, reason or stop
        count = min(s.check_every, s.max_steps - state.step)
        if count <= 0:
            return state, "step limit reached"
        for step in range(state.step, state.step + count):
            index = jax.random.choice(
                jax.random.fold_in(self.key, step),
                self.problem.measured.probes.count,
                (s.batch_size,),
                replace=False,
            )
            if s.method == "mc_sgd":
                x = _first_order.cauchy_step(self.problem, s.geometry, x, index)
            else:
                x, slots = _first_order.optax_step(
                    self.problem, s.optimizer, x, memory["optimizer"], index
                )
                memory = {**memory, "optimizer": slots}
        value = float(_objective(self.problem, x))
        if not np.isfinite(value):
            raise FitError(
                f"The objective is {value} after step {state.step + count}: the steps are too long. "
                f"Lower learning_rate or raise batch_size. error.result has the last good point.",
                state._replace(reason="objective not finite"),
            )
        state = state._replace(current=x, memory=memory, step=state.step + count)
        state, stop = self._recorded(state, x, value, None, {})
        return state, stop or self._plateau(state)

    def _plateau(self, state: FitResult) -> str | None:
        """Smoothed over two looks, the objective is higher than four looks ago."""
        if self.settings.method != "mc_sgd" or len(state.history) <= 5:
            return None
        smooth = [state.history[1].objective]
        for record in state.history[2:]:
            smooth.append(smooth[-1] + (1 - np.exp(-0.5)) * (record.objective - smooth[-1]))
        return "objective stopped falling" if smooth[-1] > smooth[-5] else None

    def _recorded(self, state: FitResult, x, value, norm, detail) -> tuple[FitResult, str | None]:
        error = None
        if self.held_out is not None and self.held_out_scale is not None:
            error = float(np.sqrt(float(_objective(self.held_out, x)) / self.held_out_scale))
        record = Record(state.step, value, norm, error, detail)
        patience = None if error is None else self.patience
        measure = lambda r: r.objective if patience is None else r.validation  # noqa: E731
        best = all(measure(record) <= measure(old) for old in state.history)
        state = state._replace(history=(*state.history, record), x=x if best else state.x)
        if self.progress:
            print(record)
        if self.callback is not None and self.callback(record, x):
            return state, "stopped by the callback"
        if patience is not None:
            errors = np.asarray([r.validation for r in state.history], np.float64)
            if errors.size - 1 - int(errors.argmin()) >= patience:
                return state, "validation error stopped falling"
        return state, None


@jax.jit
def _objective(problem: LeastSquares, x: TuckerTensorTrain) -> Array:
    return problem.objective(x)

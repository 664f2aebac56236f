"""The loop of a fit: compiled steps, and on the host what is seen, kept and decided between them."""

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t3._fit import first_order as _first_order
from t3._fit import newton as _newton
from t3._fit.problem import LeastSquares
from t3._fit.result import FitError, FitResult, Record
from t3._fit.split import to_this_process
from t3._tensor.format import TuckerTensorTrain

# A relative misfit, or fall of the objective, of so many eps is what the roundings of a pass over the
# modes leave.
_ROUNDING = 100.0


class Watch(NamedTuple):
    """Who looks at a fit, and when it has seen enough; see `t3.fit`."""

    callback: Callable[[Record, TuckerTensorTrain], bool | None] | None
    progress: bool
    patience: int | None
    checkpoint: str | os.PathLike | None


class Settings(NamedTuple):
    """What a step may need to know; see `t3.fit`."""

    method: str
    geometry: str
    max_steps: int
    gradient_tolerance: float
    max_cg_steps: int
    forcing_power: float
    resident: bool
    batch_size: int
    check_every: int
    optimizer: Any


class Run:
    """One fit in progress: the loop on the host around compiled steps."""

    def __init__(self, problem: LeastSquares, held_out, settings: Settings, key, watch: Watch):
        self.problem, self.held_out, self.settings = problem, held_out, settings
        self.key = jax.random.key(0) if key is None else key
        self.watch = watch
        self.scale = float(_data_square(problem)) / 2
        self.held_out_scale = None if held_out is None else float(_data_square(held_out)) / 2

    def start(self, x: TuckerTensorTrain) -> FitResult:
        """Where nothing has happened yet."""
        x = self.everywhere(x)
        memory = {"reference": self.everywhere(jnp.zeros((), x.dtype))}
        if self.settings.method == "adam":
            with jax.numpy_dtype_promotion("standard"):  # optax counts on it
                memory["optimizer"] = self.everywhere(self.settings.optimizer.init(x))
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
            self.everywhere(earlier.x),
            earlier.history,
            earlier.reason,
            self.everywhere(earlier.current),
            self.everywhere(memory),
            earlier.step,
            earlier.best,
        )

    def everywhere(self, tree: Any) -> Any:
        """Whole on every device of the mesh, where there is one."""
        split = self.problem.split
        return tree if split is None else split.replicate(tree)

    def here(self, tree: Any) -> Any:
        """Arrays that other processes have no part in."""
        return tree if self.problem.split is None else to_this_process(tree)

    def result(self, state: FitResult, reason: str) -> FitResult:
        """What the caller gets."""
        return state._replace(
            x=self.here(state.x),
            current=self.here(state.current),
            memory=self.here(state.memory),
            reason=reason,
        )

    def go(self, state: FitResult) -> FitResult:
        """Steps until a reason to stop."""
        try:
            while True:
                state, reason = self.advance(state)
                if self.watch.checkpoint is not None and jax.process_index() == 0:
                    self.result(state, reason or "not finished").save(self.watch.checkpoint)
                if reason is not None:
                    return self.result(state, reason)
        except KeyboardInterrupt:
            return self.result(state, "interrupted")

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
                    resident=s.resident,
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
            return state, self._stuck(value, float(moved.promised))
        memory = {**state.memory, "reference": reference}
        return state._replace(current=moved.x, memory=memory, step=state.step + 1), None

    def _stuck(self, value, promised) -> str:
        """Why no step goes down: all that is left is rounding, or the point is a poor one."""
        misfit = _relative(value, self.scale)
        rounding = _ROUNDING * float(jnp.finfo(self.problem.dtype).eps)
        if self.problem.ridge is None and misfit <= rounding:
            return "residual is zero to rounding"
        if promised <= rounding * value:
            return "objective is as low as its rounding can tell"
        return f"line search found no decrease, at a relative misfit of {misfit:.2g}"

    def _converged(self, value, norm, reference, first, state) -> str | None:
        if not np.isfinite(value) or not np.isfinite(norm):
            raise FitError(
                f"The objective is {value} and the gradient norm {norm} at step {state.step}. Data or "
                f"start with NaN, or scales that overflow {self.problem.dtype}, are the usual causes. "
                f"error.result has the last good point.",
                self.result(state, "objective not finite"),
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
            index = self.minibatch(step)
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
                self.result(state, "objective not finite"),
            )
        state = state._replace(current=x, memory=memory, step=state.step + count)
        state, stop = self._recorded(state, x, value, None, {})
        return state, stop or self._plateau(state)

    def minibatch(self, step: int) -> Array:
        """Positions of the probes of a step; they depend on nothing but the key and the step."""
        key, count = jax.random.fold_in(self.key, step), self.problem.measured.probes.count
        size, split = self.settings.batch_size, self.problem.split
        if split is not None:
            return split.draw(key, count, size)
        return jax.random.choice(key, count, (size,), replace=False)

    def _plateau(self, state: FitResult) -> str | None:
        """Smoothed over two looks, the objective is higher than four looks ago."""
        if self.settings.method != "mc_sgd" or len(state.history) <= 5:
            return None
        smooth = [state.history[1].objective]
        for record in state.history[2:]:
            smooth.append(smooth[-1] + (1 - np.exp(-0.5)) * (record.objective - smooth[-1]))
        return "objective stopped falling" if smooth[-1] > smooth[-5] else None

    def _recorded(self, state: FitResult, x, value, norm, detail) -> tuple[FitResult, str | None]:
        objective = self.everywhere(jnp.asarray(value, self.problem.dtype))
        misfit = _relative(float(_misfit(self.problem, x, objective)), self.scale)
        error = None
        if self.held_out is not None and self.held_out_scale is not None:
            error = _relative(float(_objective(self.held_out, x)), self.held_out_scale)
        record = Record(state.step, value, norm, misfit, error, detail)
        patience = None if error is None else self.watch.patience
        measure = lambda r: r.objective if patience is None else r.validation  # noqa: E731
        best = all(measure(record) <= measure(old) for old in state.history)
        if best:
            state = state._replace(x=x, best=len(state.history))
        state = state._replace(history=(*state.history, record))
        if self.watch.progress and jax.process_index() == 0:
            print(record)
        if self.watch.callback is not None and self.watch.callback(record, self.here(x)):
            return state, "stopped by the callback"
        if patience is not None:
            errors = np.asarray([r.validation for r in state.history], np.float64)
            if errors.size - 1 - int(errors.argmin()) >= patience:
                return state, "validation error stopped falling"
        return state, None


def _relative(half_square: float, scale: float) -> float:
    """Size of a residual relative to that of the data; both are halves of squares."""
    if scale == 0:
        return math.inf if half_square else 0.0
    return math.sqrt(half_square / scale)


@jax.jit
def _misfit(problem: LeastSquares, x: TuckerTensorTrain, objective: Array) -> Array:
    return problem.misfit(x, objective)


@jax.jit
def _data_square(problem: LeastSquares) -> Array:
    return problem.data_square()


@jax.jit
def _objective(problem: LeastSquares, x: TuckerTensorTrain) -> Array:
    return problem.objective(x)

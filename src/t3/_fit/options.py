"""What a fit can be told, in groups; and the short form that names options without their group."""

import difflib
import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from t3._fit.checkpoint import Checkpoint
from t3._fit.checks import checked_number
from t3._fit.methods import METHODS, Method
from t3._fit.problem import LeastSquares, checked_ridge, least_squares
from t3._fit.split import Split
from t3._fit.units import Units, in_units
from t3._sampling.kinds import Sampling
from t3._tensor.format import TuckerTensorTrain


class Objective(eqx.Module):
    """What is minimised: ``1/2 |w (samples(x) - data)|^2 + regularizer/2 |x|^2``.

    Attributes:
        weight: factors w of the residual: a number, ``(K + 1,)`` by order, for probes ``(d, K + 1)``
            by mode and order, or ``(d,)`` by mode where there are no orders.
        regularizer: Tikhonov factor, not negative.
        chunk_size: probes worked on at a time; None for all, ``"auto"`` from the sizes. The result
            depends on it by rounding only.
    """

    weight: Any = None
    regularizer: Any = None
    chunk_size: Any = eqx.field(default="auto", static=True)

    def problem(
        self,
        x: TuckerTensorTrain,
        sampling: Sampling,
        data: Any,
        split: Split | None,
        batch_size: int | None = None,
    ) -> tuple[LeastSquares, Units]:
        """The least squares of tensors like `x`, in units of the data."""
        weight, unit = in_units(self.weight)
        ridge = self.regularizer
        if ridge is not None:
            ridge = checked_ridge(ridge) / unit**2
        options = {"chunk_size": self.chunk_size, "batch_size": batch_size, "split": split}
        problem = least_squares(x, sampling, data, weight=weight, ridge=ridge, **options)
        units = Units.of(problem, unit)
        return units.problem_in(problem), units


class HeldOut(eqx.Module):
    """Samples and data that are not fitted; a fit records its relative error there.

    Attributes:
        sampling, data: as for `t3.fit`.
        patience: stop when that error has not fallen for so many records; the result is then the
            point of its least.
    """

    sampling: Any
    data: Any
    patience: int | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        if self.patience is not None:
            checked_number("patience", self.patience, 1)

    def problem(
        self, x: TuckerTensorTrain, objective: Objective, split: Split | None, units: Units
    ) -> LeastSquares:
        """Their least squares, in the units of the fit.

        Raises:
            ValueError: data that are not finite.
        """
        unweighted = least_squares(
            x,
            self.sampling,
            self.data,
            weight=in_units(objective.weight)[0],
            chunk_size=objective.chunk_size,
            split=split,
        )
        if not bool(_all_finite(unweighted)):
            raise ValueError(
                "validation must hold finite data, got NaN or infinity: leave those samples out."
            )
        return units.problem_in(unweighted)


class Watch(eqx.Module):
    """Who looks at a fit.

    Attributes:
        callback: called with each record and its point, in every process; return True to stop, then
            in all of them.
        progress: print a line for each record (in the first of many processes).
        checkpoint: file that the state is written to after every step (mc_sgd and adam: after every
            look), by the first process. `t3.FitResult.load` reads it for ``resume=``, on any number
            of devices.
    """

    callback: Callable[..., Any] | None = None
    progress: bool = False
    checkpoint: str | os.PathLike | None = None


class Told(NamedTuple):
    """All that a fit was told, each group checked."""

    method: Method
    objective: Objective
    validation: HeldOut | None
    watch: Watch
    split: Split | None


# Options of the groups, by which the short form finds them.
_GROUPS: dict[str, type] = {"objective": Objective, "validation": HeldOut, "watch": Watch}
_MEANS_SOMETHING_AS_NONE = ("chunk_size",)


def told(
    method: Any,
    objective: Objective | None,
    validation: Any,
    watch: Watch | None,
    devices: Any,
    options: dict[str, Any],
) -> Told:
    """Groups as they were given, or made of the options of the short form.

    Raises:
        TypeError: an option that is none.
        ValueError: options of a group or a method that was given itself; of another method; values
            out of range.
    """
    options = {
        name: value
        for name, value in options.items()
        if value is not None or name in _MEANS_SOMETHING_AS_NONE
    }
    _check_names(options)
    take = lambda names: {name: options.pop(name) for name in names if name in options}  # noqa: E731
    split = _devices(devices, **take(("mesh", "axis")))
    objective = _group("objective", objective, take(_names(Objective)))
    watch = _group("watch", watch, take(_names(Watch)))
    validation = _held_out(validation, **take(("patience",)))
    return Told(_method(method, options), objective, validation, watch, split)


def _method(method: Any, options: dict[str, Any]) -> Method:
    if isinstance(method, Method):
        if options:
            name = next(iter(options))
            raise ValueError(
                f"{name}= is of the method: give it to {type(method).__name__}({name}=...), or name "
                "the method by a string."
            )
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be a t3.Method or one of {sorted(METHODS)}, got {method!r}.")
    known = _names(METHODS[method])
    for name in options:
        if name not in known:
            having = [short for short, cls in METHODS.items() if name in _names(cls)]
            raise ValueError(
                f"{name}= is of method {' and '.join(having)}, got method={method!r}: leave it out."
            )
    return METHODS[method](**options)


def _group(name: str, group: Any, options: dict[str, Any]) -> Any:
    cls = _GROUPS[name]
    if group is None:
        return cls(**options)
    if not isinstance(group, cls):
        raise ValueError(f"{name} must be a t3.{cls.__name__}, got {type(group).__name__}.")
    if options:
        option = next(iter(options))
        raise ValueError(
            f"{option}= is of {name}=, which was given: t3.{cls.__name__}({option}=...)."
        )
    return group


def _held_out(validation: Any, patience: Any = None) -> HeldOut | None:
    if validation is None:
        if patience is not None:
            raise ValueError("patience= waits for a validation error to fall: give validation=.")
        return None
    if isinstance(validation, HeldOut):
        return _group("validation", validation, {} if patience is None else {"patience": patience})
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError(
            "validation must be a t3.HeldOut or a pair (sampling, data), got "
            f"{type(validation).__name__}."
        )
    return HeldOut(*validation, patience=patience)


def _devices(devices: Any, mesh: Mesh | None = None, axis: str | None = None) -> Split | None:
    if devices is not None:
        if mesh is not None or axis is not None:
            raise ValueError("mesh= and axis= are the short form of devices=: give one of them.")
        mesh = devices
    return Split.checked(mesh, axis)


def _check_names(options: dict[str, Any]) -> None:
    known = {"mesh", "axis", "patience", *_names(Objective), *_names(Watch)}
    known.update(name for cls in METHODS.values() for name in _names(cls))
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}=?" if near else ""
            raise TypeError(
                f"a fit has no option {name}=.{hint} There are {', '.join(sorted(known))}."
            )


def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


@jax.jit
def _all_finite(problem: LeastSquares) -> jax.Array:
    finite = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(problem.measured.data)]
    return jnp.all(jnp.stack(finite))


def checkpoint_of(watch: Watch) -> Checkpoint | None:
    """The file of a watch, where it has one."""
    return None if watch.checkpoint is None else Checkpoint(watch.checkpoint)

"""Samples that are kept from a fit, to tell how well it does on what it has not seen."""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t3._fit.checks import checked_number, key_field
from t3._fit.objective import Objective
from t3._fit.problem import LeastSquares, least_squares
from t3._fit.split import Split
from t3._fit.units import Units, in_units
from t3._sampling.sampling import Sampling
from t3._tensor.format import TuckerTensorTrain


def _patience(value: Any) -> int | None:
    return None if value is None else checked_number("patience", value, 1)


class Validation(eqx.Module):
    """Where held-out samples come from."""

    patience: eqx.AbstractVar[int | None]

    @abc.abstractmethod
    def split(self, sampling: Sampling, data: Any) -> tuple[Sampling, Any, "HeldOut"]:
        """Samples and data to fit, and those held out."""


class HeldOut(Validation):
    """Samples and data that are not fitted; a fit records its relative error there.

    Attributes:
        sampling, data: as for `t3.fit`.
        patience: stop when that error has not fallen for so many records; the result is then the
            point of its least.
    """

    sampling: Any
    data: Any
    patience: int | None = eqx.field(default=None, static=True, converter=_patience)

    def split(self, sampling: Sampling, data: Any) -> tuple[Sampling, Any, "HeldOut"]:
        return sampling, data, self

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
            mesh=split,
        )
        if not bool(_all_finite(unweighted)):
            raise ValueError(
                "validation must hold finite data, got NaN or infinity: leave those samples out."
            )
        return units.problem_in(unweighted)


class SplitOff(Validation):
    """A random part of the samples that were given, held out.

    Attributes:
        fraction: of the samples, between 0 and 1; at least one on either side.
        key: for the choice. Default ``jax.random.key(0)``.
        patience: as in `HeldOut`.
    """

    fraction: float = eqx.field(default=0.1, static=True)
    key: Array = key_field()
    patience: int | None = eqx.field(default=None, static=True, converter=_patience)

    def __check_init__(self):
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction must lie between 0 and 1, got {self.fraction!r}.")

    def split(self, sampling: Sampling, data: Any) -> tuple[Sampling, Any, HeldOut]:
        leaves = jax.tree.leaves((sampling, data))
        if not all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves):
            raise ValueError(
                "a part can only be split off samples that this process holds whole: give "
                "validation=(sampling, data)."
            )
        count = math.prod(sampling.batch)
        held = min(max(1, round(self.fraction * count)), count - 1)
        if held < 1:
            raise ValueError(f"holding samples out needs two at least, got {count}.")
        order = np.asarray(jax.random.permutation(self.key, count))

        def part(index):
            return sampling.taken(np.sort(index)), sampling.values_taken(data, np.sort(index))

        return *part(order[held:]), HeldOut(*part(order[:held]), patience=self.patience)


def as_validation(validation: Any, patience: Any = None) -> Validation | None:
    """What a fit was given: a `Validation`, a pair, a fraction, or None.

    Raises:
        ValueError: anything else, or patience without it.
    """
    if validation is None:
        if patience is not None:
            raise ValueError("patience= waits for a validation error to fall: give validation=.")
        return None
    if isinstance(validation, Validation):
        if patience is not None:
            raise ValueError(
                "patience= is of validation=, which was given: "
                f"t3.{type(validation).__name__}(..., patience=...)."
            )
        return validation
    if isinstance(validation, float):
        return SplitOff(fraction=validation, patience=patience)
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError(
            "validation must be a pair (sampling, data), a t3.HeldOut, a t3.SplitOff or a fraction, "
            f"got {type(validation).__name__}."
        )
    return HeldOut(*validation, patience=patience)


@jax.jit
def _all_finite(problem: LeastSquares) -> jax.Array:
    finite = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(problem.measured.data)]
    return jnp.all(jnp.stack(finite))

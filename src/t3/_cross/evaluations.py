"""A function of indices, evaluated once at each index and counted."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped


class BudgetSpentError(Exception):
    """A batch would go beyond the number of evaluations allowed."""


class Evaluations:
    """Remembers every value of a function of indices, and calls it for the missing ones.

    Attributes:
        count: distinct indices evaluated.
        calls: how often the function was called.
        dtype: of the function's values; None before the first call.
        largest: the largest absolute value seen.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        shape: Sequence[int],
        budget: int | None,
        batch_size: int | None,
    ):
        self.function, self.shape = function, tuple(shape)
        self.budget, self.batch_size = budget, batch_size
        self.count = self.calls = 0
        self.dtype: np.dtype | None = None
        self.largest = 0.0
        self._keys = self._as_keys(np.zeros((0, len(shape)), int))
        self._values = np.zeros(0)

    @property
    def rounding(self) -> float:
        """Relative rounding of the function's values."""
        return float(jnp.finfo(self.dtype or np.dtype(float)).eps)

    def _as_keys(self, index: np.ndarray) -> np.ndarray:
        """One sortable word for each index: its position, or its bytes where no integer holds that."""
        if math.prod(self.shape) < 2**63:
            return np.ravel_multi_index(tuple(index.T), self.shape)
        letters = np.ascontiguousarray(index, ">u4")
        return letters.view(np.dtype((np.void, 4 * len(self.shape)))).reshape(-1)

    def __call__(self, index: Shaped[np.ndarray, "m d"]) -> Shaped[np.ndarray, " m"]:
        """Values in float64.

        Raises:
            BudgetSpentError: if the new ones among them are more than the budget leaves; none is
                evaluated then.
        """
        unique, first, back = np.unique(
            self._as_keys(index), return_index=True, return_inverse=True
        )
        place = np.searchsorted(self._keys, unique)
        known = np.zeros(len(unique), bool)
        inside = place < len(self._keys)
        known[inside] = self._keys[place[inside]] == unique[inside]
        if not known.all():
            new = np.ascontiguousarray(index[first[~known]])
            if self.budget is not None and self.count + len(new) > self.budget:
                raise BudgetSpentError
            values = self._call(new)
            self._keys = np.insert(self._keys, place[~known], unique[~known])
            self._values = np.insert(self._values, place[~known], values)
            self.count += len(new)
            self.largest = max(self.largest, float(np.abs(values).max()))
            place = np.searchsorted(self._keys, unique)
        return self._values[place][back]

    def _call(self, index) -> np.ndarray:
        size = self.batch_size or len(index)
        values = []
        for start in range(0, len(index), size):
            batch = index[start : start + size]
            short = size - len(batch)
            if short:
                batch = np.concatenate([batch, np.repeat(batch[-1:], short, axis=0)])
            values.append(self._checked(batch)[: size - short])
        return np.concatenate(values)

    def _checked(self, batch) -> np.ndarray:
        self.calls += 1
        given = np.asarray(self.function(np.ascontiguousarray(batch.T)))
        if given.shape != (batch.shape[0],):
            raise ValueError(
                f"function was called with an index of shape {batch.T.shape}, one column an entry, "
                f"and must return {batch.shape[0]} values; it returned an array of shape "
                f"{given.shape}. jax.vmap(entry, in_axes=1) makes it of a function of one index."
            )
        if not (np.issubdtype(given.dtype, np.number) or jnp.issubdtype(given.dtype, jnp.floating)):
            raise ValueError(f"function must return real numbers, got {given.dtype}.")
        if np.issubdtype(given.dtype, np.complexfloating):
            raise ValueError(
                f"function must return real numbers, got {given.dtype}: give real and imaginary "
                "parts apart."
            )
        if not jnp.issubdtype(given.dtype, jnp.floating):
            given = given.astype(np.float64)
        self.dtype = given.dtype
        values = given.astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(
                f"function must return finite numbers, got {values[bad[0]]} at index "
                f"{tuple(batch[bad[0]].tolist())} ({bad.size} of {len(values)} values of this call)."
            )
        return values

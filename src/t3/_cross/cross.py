"""A Tucker tensor train of a function, from entries chosen where they say most."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from memory import checked_key
from t3._cross.evaluations import BudgetSpentError, Evaluations
from t3._cross.network import Network, uniform_indices
from t3._cross.result import CrossOutcome, CrossRecord, CrossResult
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.ranks import Ranks, minimal_ranks
from t3._tensor.rounding import rank_pair

# Fewer pivots at a time cost more calls, more cost evaluations of pivots that are not needed.
_GROWTH = 4
# A residual this small against tolerance * root mean square earns no pivot, at first.
_SMALL = 0.3
# Where the random entries' norm lies in fewer than this share of them, they show too little.
_CONCENTRATED = 0.05


def cross(
    function: Callable[[Any], Any],
    shape: Sequence[int],
    *,
    tolerance: float,
    key: Any,
    max_ranks: Ranks | None = None,
    budget: int | None = None,
    num_checks: int = 100,
    batch_size: int | None = None,
) -> CrossResult:
    """Interpolates a function of indices by a Tucker tensor train, from few of its values.

    Pivots are added at all cuts of the modes at once, where the interpolation misses most among the
    entries that the cuts look at (rook pivoting), starting from the worst of the random entries
    evaluated so far. No entry is evaluated twice. A round is three calls of `function`, all of
    large batches.

    Args:
        function: maps integers ``(d, m)``, a NumPy array with one column for each entry, to m
            finite real numbers; in NumPy or JAX. ``t3.basis`` makes the nodes of a grid.
        shape: mode sizes, length d.
        tolerance: root mean squared error wanted, relative to the function's root mean square.
        key: for the random entries.
        max_ranks: one number for all ranks, or ``(tucker_ranks, tt_ranks)``, each one number or a
            sequence of d and d + 1. Ranks that the shape makes impossible are cut.
        budget: most evaluations, those for the error included.
        num_checks: random entries that look for what is missed, and as many fresh ones at the end
            that estimate the error.
        batch_size: entries in a call; the last call is filled up by repetition, so that a compiled
            function meets one shape. Default: all that a round needs.

    Returns:
        A `CrossResult`: tensor, error, evaluations, why it stopped.

    Raises:
        ValueError: a function that returns another number of values, complex or infinite ones, a
            budget below what the first round needs, or arguments that make no sense.

    Cost: about ``N n + n r^2`` evaluations for each mode, and a few more. Work on the host in
    float64, ``d n r^3`` multiply-adds a round.

    Source: Oseledets and Tyrtyshnikov (2010), doi:10.1016/j.laa.2009.07.024; rook pivots as in
    Nunez Fernandez et al. (2025), doi:10.21468/SciPostPhys.18.3.104.
    """
    shape, caps = _checked(shape, tolerance, max_ranks, budget, num_checks, batch_size)
    seed = np.asarray(jax.random.key_data(checked_key(key))).ravel().tolist()
    # The last checks are paid for beforehand, so that every result has an error.
    most = None if budget is None else budget - num_checks
    entries = Evaluations(function, shape, most, batch_size)
    search = _Search(entries, np.random.default_rng(seed), num_checks, caps)
    try:
        search.start()
    except BudgetSpentError:
        raise ValueError(
            f"budget={budget} does not pay for the first round on shape {shape}: about "
            f"{2 * num_checks + 2 * sum(shape)} evaluations, {2 * num_checks} of them checks."
        ) from None
    outcome, error = search.run(tolerance)
    if outcome is not CrossOutcome.WITHIN_TOLERANCE:
        entries.budget = budget
        error = search.fresh_error()
    dtype = jax.dtypes.canonicalize_dtype(entries.dtype or np.dtype(float))
    tucker, train = search.network.cores()
    x = TuckerTensorTrain(
        tuple(core.astype(dtype) for core in tucker), tuple(core.astype(dtype) for core in train)
    )
    return CrossResult(x, error, entries.count, entries.calls, outcome, tuple(search.history))


class _Search:
    """The rounds, and the random entries that steer them.

    Attributes:
        index: random indices looked at so far.
        weight: for estimates of means over all entries, see `Network.sample`.
        concentrated: the function is nearly zero nearly everywhere.
    """

    def __init__(
        self, entries: Evaluations, rng: np.random.Generator, num_checks: int, caps: tuple
    ):
        self.entries, self.rng, self.num_checks, self.caps = entries, rng, num_checks, caps
        self.history: list[CrossRecord] = []

    def start(self) -> None:
        """One pivot at every cut, where the function is large."""
        self.index = uniform_indices(self.rng, self.entries.shape, self.num_checks)
        self.weight = np.ones(self.num_checks)
        values = self.entries(self.index)
        first = self.index[np.argmax(np.abs(values))]
        square = (values / (np.abs(values).max() or 1.0)) ** 2
        most = _CONCENTRATED * len(square) * (square**2).sum()
        self.concentrated = bool(square.sum() ** 2 < most)
        if self.concentrated:
            first = self._climb(first)
        self.network = Network(self.entries, first, *self.caps)
        self._refit()

    def run(self, tolerance: float) -> tuple[CrossOutcome, float]:
        """Rounds until the error is within the tolerance or nothing more can be done."""
        small = _SMALL
        try:
            while True:
                if self._error(self.index, self.weight) <= tolerance:
                    error = self.fresh_error()
                    if error <= tolerance:
                        return CrossOutcome.WITHIN_TOLERANCE, error
                values = self.entries(self.index)
                residual = np.abs(values - self.network.value(self.index))
                most = max(1, max(self.network.ranks[1]) // _GROWTH)
                worst = self.index[np.argsort(-residual)[:most]]
                floor = 10 * self.entries.rounding * self.entries.largest
                threshold = max(small * tolerance * _root_mean_square(values), floor)
                if self.network.grow(worst, most, threshold):
                    self._refit()
                elif threshold > floor:
                    small /= 3
                elif self.network.is_capped():
                    return CrossOutcome.RANKS_REACHED, float("nan")
                else:
                    return CrossOutcome.AT_ROUNDING, float("nan")
        except BudgetSpentError:
            return CrossOutcome.BUDGET_SPENT, float("nan")

    def fresh_error(self) -> float:
        """At random entries that were not looked at before; from now on they are."""
        index, weight = self.network.sample(self.rng, self.num_checks)
        error = self._error(index, weight)
        self.index = np.concatenate([self.index, index])
        self.weight = np.concatenate([self.weight, weight])
        return error

    def _refit(self) -> None:
        self.network.fit_cores()
        if self.concentrated:
            # Uniform entries show too little of it.
            self.fresh_error()
        error = self._error(self.index, self.weight)
        self.history.append(CrossRecord(self.entries.count, error, *self.network.ranks))

    def _error(self, index: np.ndarray, weight: np.ndarray) -> float:
        """Of the norm over all entries, relative; 0 where function and tensor are zero."""
        values, root = self.entries(index), np.sqrt(weight)
        missed = _root_mean_square(root * (values - self.network.value(index)))
        return missed / (_root_mean_square(root * values) or 1.0)

    def _climb(self, index: np.ndarray) -> np.ndarray:
        """Towards the largest value, along all modes at once and then along the best of them."""
        shape = self.entries.shape
        while True:
            lines = np.repeat(index[None], sum(shape), axis=0)
            mode = np.repeat(np.arange(len(shape)), shape)
            lines[np.arange(len(lines)), mode] = np.concatenate([np.arange(n) for n in shape])
            values = np.abs(self.entries(lines))
            best = np.split(values, np.cumsum(shape)[:-1])
            jump = np.array([line.argmax() for line in best])
            both = np.stack([jump, lines[values.argmax()]])
            reached = np.abs(self.entries(both))
            if not reached.max() > np.abs(self.entries(index[None]))[0]:
                return index
            index = both[reached.argmax()]


def _root_mean_square(values: np.ndarray) -> float:
    size = float(np.abs(values).max())
    return size * float(np.sqrt(np.mean((values / size) ** 2))) if size > 0 else 0.0


def _checked(shape, tolerance, max_ranks, budget, num_checks, batch_size):
    """Shape as plain integers, and caps of the Tucker ranks and of the inner bonds.

    Raises:
        ValueError: see `cross`.
    """
    try:
        shape = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise ValueError(f"shape must be integers, got {shape}.") from None
    if len(shape) < 2 or min(shape) < 1:
        raise ValueError(f"cross needs at least two modes with entries, got shape {shape}.")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be a relative error above 0, got {tolerance}.")
    for name, value in {
        "budget": budget,
        "num_checks": num_checks,
        "batch_size": batch_size,
    }.items():
        if value is not None and not (isinstance(value, int | np.integer) and value >= 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
    d = len(shape)
    tucker, tt = (
        (shape, (max(shape) ** d,) * (d + 1))
        if max_ranks is None
        else rank_pair(max_ranks, shape, "max_ranks")
    )
    if min(*tucker, *tt) < 1:
        raise ValueError(f"max_ranks must be at least 1, got {max_ranks}.")
    return shape, minimal_ranks(shape, tucker, tt)

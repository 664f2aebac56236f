"""The cuts of a Tucker tensor train, their pivots, and the tensor that interpolates them.

A train over d modes has a cut between each mode and the next. Each mode but the first and last,
whose Tucker bases are the bases of their cuts, also has a cut between itself and all others. At
each cut the pivots of its neighbours say which rows and columns are looked at: a train's rows are
those of the cut before it, with the values of the mode between. So entries that one cut looks at
are entries of its neighbours' cores, and nothing is evaluated in vain.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from t3._cross.evaluations import Evaluations
from t3._cross.pivots import Cut, eliminate, interpolation, product, without


class Network:
    """Pivots at every cut of d modes, d at least 2, and the cores that they make.

    Attributes:
        trains: cuts between neighbouring modes, d - 1.
        leaves: cuts between one mode and the others, by mode; none for the first and the last.
    """

    def __init__(
        self,
        entries: Evaluations,
        first: np.ndarray,
        tucker_caps: Sequence[int],
        tt_caps: Sequence[int],
    ):
        """One pivot, the entry `first`, at every cut; caps are the largest ranks."""
        self.entries = entries
        self.shape, self.d = entries.shape, len(entries.shape)
        modes = np.arange(self.d)
        self.trains = [_one_pivot(modes <= k, first) for k in range(self.d - 1)]
        self.leaves = {i: _one_pivot(modes == i, first) for i in range(1, self.d - 1)}
        self._train_caps = list(tt_caps[1:-1])
        for cut, mode in (0, 0), (-1, -1):
            self._train_caps[cut] = min(self._train_caps[cut], tucker_caps[mode])
        self._leaf_caps = list(tucker_caps[1:-1])

    @property
    def ranks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tucker and train ranks."""
        inner = tuple(cut.rank for cut in self.trains)
        leaves = tuple(cut.rank for cut in self.leaves.values())
        return (inner[0], *leaves, inner[-1]), (1, *inner, 1)

    def fit_cores(self) -> None:
        """Evaluates what the pivots ask for, in one batch, and makes the cores of it."""
        last = self.trains[-1]
        blocks = []
        for k, cut in enumerate(self.trains):
            blocks.append((cut, self._rows(k), cut.columns))
        blocks += [(cut, self._all(i), cut.columns) for i, cut in self.leaves.items()]
        blocks += [(cut, cut.rows, cut.columns) for cut in self.trains]
        *values, closing = self._ask([*blocks, (last, last.rows, self._columns(self.d - 2))])
        trains, leaves = values[: self.d - 1], values[self.d - 1 : -(self.d - 1)]
        pivots = values[-(self.d - 1) :]
        first, *inner = [interpolation(*pair) for pair in zip(trains, pivots, strict=True)]
        self._bases = [first] + [
            interpolation(fibres, fibres[cut.rows[:, i]])
            for fibres, (i, cut) in zip(leaves, self.leaves.items(), strict=True)
        ]
        self._bases.append(closing.T)
        self._cores = [
            core.reshape(before.rank, -1, cut.rank)
            for core, before, cut in zip(inner, self.trains[:-1], self.trains[1:], strict=True)
        ]

    def cores(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Tucker cores ``(n, N)`` and train cores, as of the last `fit_cores`."""
        ends = [np.eye(self._bases[i].shape[1]) for i in (0, -1)]
        tucker = [np.ascontiguousarray(basis.T) for basis in self._bases]
        return tucker, [ends[0][None], *self._cores, ends[1][:, :, None]]

    def value(self, index: np.ndarray) -> np.ndarray:
        """The interpolating tensor at ``(m, d)`` indices."""
        left = self._bases[0][index[:, 0]]
        for mode, core in enumerate(self._cores, 1):
            left = np.einsum("ma,anb->mnb", left, core, optimize=True)
            left = np.einsum("mnb,mn->mb", left, self._bases[mode][index[:, mode]])
        return np.einsum("mb,mb->m", left, self._bases[-1][index[:, -1]])

    def sample(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices drawn half uniformly, half by the square of the interpolating tensor.

        Returns:
            Indices ``(m, d)`` and their weights ``(m,)``: one over their density relative to the
            uniform one, so that weighted means estimate means over all entries.
        """
        index = uniform_indices(rng, self.shape, count)
        # Mean squares over all modes after each, up to a factor.
        right = [np.ones((1, 1))]
        cores = self.cores()[1]
        sizes = [np.abs(basis).max() or 1.0 for basis in self._bases]
        bases = [basis / size for basis, size in zip(self._bases, sizes, strict=True)]
        log_mean = 2 * float(np.sum(np.log(sizes)))
        for core, basis in zip(cores[::-1], bases[::-1], strict=True):
            gram = basis.T @ basis / len(basis)
            half = np.einsum("anb,bd,nm->amd", core, right[0], gram, optimize=True)
            square = np.einsum("amd,cmd->ac", half, core, optimize=True)
            size = np.abs(square).max()
            if not size > 0:
                return index, np.ones(count)
            log_mean += np.log(size)
            right.insert(0, square / size)
        half = count // 2
        left = np.ones((half, 1))
        for mode, (core, basis) in enumerate(zip(cores, bases, strict=True)):
            choices = np.einsum("ma,anb,Nn->mNb", left, core, basis, optimize=True)
            chance = np.einsum("mNb,bc,mNc->mN", choices, right[mode + 1], choices, optimize=True)
            chance = np.cumsum(np.maximum(chance, 0), axis=1)
            reached = chance < rng.random((half, 1)) * chance[:, -1:]
            index[:half, mode] = np.minimum(reached.sum(axis=1), self.shape[mode] - 1)
            left = choices[np.arange(half), index[:half, mode]]
            left /= np.maximum(np.abs(left).max(axis=1, keepdims=True), 1e-300)
        with np.errstate(divide="ignore"):
            log_square = 2 * np.log(np.abs(self.value(index))) - log_mean
        return index, 2 / (1 + np.exp(np.minimum(log_square, 700)))

    def is_capped(self) -> bool:
        """Whether the largest rank is reached at some cut."""
        return any(room <= 0 for *_, room in self._cuts())

    def grow(self, worst: np.ndarray, most: int, threshold: float) -> int:
        """Adds up to `most` pivots at every cut, all cuts at once.

        Each cut looks for pivots as Gaussian elimination with rook pivoting does: at the columns of
        the `worst` entries, then at the rows where those miss most.

        Args:
            worst: ``(q, d)`` indices where the interpolation is worst.
            most: pivots for a cut.
            threshold: the least residual that earns a pivot.

        Returns:
            How many were added.
        """
        jobs = []
        for cut, rows, columns, room in self._cuts():
            if room > 0:
                ours, theirs = np.where(cut.side, worst, 0), np.where(cut.side, 0, worst)
                rows = np.concatenate([rows, without(ours, rows)])
                columns = np.concatenate([columns, without(theirs, columns)])
                jobs.append((cut, rows, columns, without(theirs, cut.columns), min(most, room)))
        jobs = [job for job in jobs if len(job[3])]
        residuals = self._residuals([(cut, rows, start) for cut, rows, _, start, _ in jobs])
        chosen = []
        for (cut, rows, columns, _, room), residual in zip(jobs, residuals, strict=True):
            found, _ = eliminate(residual, room, threshold)
            if found:
                chosen.append((cut, rows[found], columns))
        added = 0
        for (cut, rows, columns), residual in zip(chosen, self._residuals(chosen), strict=True):
            a, b = eliminate(residual, len(rows), threshold)
            cut.add(rows[a], columns[b])
            added += len(a)
        return added

    def _residuals(self, blocks: list) -> list[np.ndarray]:
        """What the cross interpolation of a cut misses, for blocks ``(cut, rows, columns)``."""
        if not blocks:
            return []
        n = len(blocks)
        wanted = list(blocks)
        wanted += [(cut, rows, cut.columns) for cut, rows, _ in blocks]
        wanted += [(cut, cut.rows, columns) for cut, _, columns in blocks]
        wanted += [(cut, cut.rows, cut.columns) for cut, _, _ in blocks]
        values = self._ask(wanted)
        quads = zip(*(values[i * n : (i + 1) * n] for i in range(4)), strict=True)
        return [block - interpolation(left, pivots) @ right for block, left, right, pivots in quads]

    def _ask(self, blocks: list) -> list[np.ndarray]:
        """Entries of blocks ``(cut, rows, columns)`` as matrices, in one batch."""
        indices = [cut.pairs(rows, columns) for cut, rows, columns in blocks]
        values = self.entries(np.concatenate(indices))
        parts = np.split(values, np.cumsum([len(index) for index in indices])[:-1])
        return [
            part.reshape(len(rows), len(columns))
            for part, (_, rows, columns) in zip(parts, blocks, strict=True)
        ]

    def _cuts(self) -> Iterator[tuple[Cut, np.ndarray, np.ndarray, int]]:
        """Every cut with the rows and columns that it looks at, and the pivots that it may gain."""
        for k, (cut, cap) in enumerate(zip(self.trains, self._train_caps, strict=True)):
            yield cut, self._rows(k), self._columns(k), cap - cut.rank
        for (i, cut), cap in zip(self.leaves.items(), self._leaf_caps, strict=True):
            before, after = self.trains[i - 1].rows, self.trains[i].columns
            around = (before[:, None] + after[None]).reshape(-1, self.d)
            yield cut, self._all(i), around, cap - cut.rank

    def _rows(self, k: int) -> np.ndarray:
        if k == 0:
            return self._all(0)
        return product(self.trains[k - 1].rows, k, self.leaves[k].rows[:, k])

    def _columns(self, k: int) -> np.ndarray:
        if k == self.d - 2:
            return self._all(self.d - 1)
        return product(self.trains[k + 1].columns, k + 1, self.leaves[k + 1].rows[:, k + 1])

    def _all(self, mode: int) -> np.ndarray:
        return product(np.zeros((1, self.d), int), mode, np.arange(self.shape[mode]))


def _one_pivot(side: np.ndarray, index: np.ndarray) -> Cut:
    return Cut(side, np.where(side, index, 0)[None], np.where(side, 0, index)[None])


def uniform_indices(rng: np.random.Generator, shape: Sequence[int], count: int) -> np.ndarray:
    """Random indices ``(count, d)``."""
    return np.stack([rng.integers(0, size, count) for size in shape], axis=1)

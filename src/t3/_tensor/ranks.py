"""Ranks as plain integers: what is possible, and what orthogonalisation leaves."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# One number for all ranks, or ``(tucker_ranks, tt_ranks)``, each one number or d and d + 1 of them.
Ranks = int | tuple[int | Sequence[int], int | Sequence[int]]


class T3Ranks(NamedTuple):
    """True sizes of a Tucker tensor train (packed array shapes do not show them).

    Attributes:
        shape: mode sizes ``N_i``, length d.
        tucker: Tucker ranks ``n_i``, length d.
        tt: tensor train ranks ``r_0 .. r_d``, length d + 1.
    """

    shape: tuple[int, ...]
    tucker: tuple[int, ...]
    tt: tuple[int, ...]


class FrameRanks(NamedTuple):
    """True sizes of a `T3Frame`.

    Attributes:
        shape: mode sizes ``N_i``, length d.
        up: ``nU_i``, rows of the up Tucker cores, length d.
        down: ``nO_i``, middle size of the down cores, length d.
        left: ``rL_0 .. rL_d``, length d + 1.
        right: ``rR_0 .. rR_d``, length d + 1.
    """

    shape: tuple[int, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]


def spread(ranks: Any, count: int) -> tuple[int, ...]:
    """Ranks as plain integers; one number is that many, the end bonds of a train (d + 1) too.

    Raises:
        TypeError: what is no integer and no sequence of integers.
    """
    if isinstance(ranks, int | np.integer):
        return (operator.index(ranks),) * count
    return tuple(operator.index(rank) for rank in ranks)


def minimal_ranks(
    shape: tuple[int, ...], tucker_ranks: tuple[int, ...], tt_ranks: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Largest ranks not above the given ones that a tensor of this shape can really have.

    A Tucker rank cannot exceed its mode size nor the product of the bonds beside it; a bond cannot
    exceed its neighbour bond times the Tucker rank between them. End bonds are one, because they
    are contracted with ones.

    Args:
        shape: mode sizes, length d.
        tucker_ranks: length d.
        tt_ranks: length d + 1.

    Returns:
        Tucker ranks and tensor train ranks.
    """
    d = len(shape)
    n = [min(pair) for pair in zip(tucker_ranks, shape, strict=True)]
    r = [1, *tt_ranks[1:-1], 1]
    while True:
        before = (list(n), list(r))
        for i in range(d):
            n[i] = min(n[i], r[i] * r[i + 1])
        for i in range(1, d):
            r[i] = min(r[i], r[i - 1] * n[i - 1])
        for i in reversed(range(1, d)):
            r[i] = min(r[i], r[i + 1] * n[i])
        if before == (n, r):
            return tuple(n), tuple(r)


def frame_ranks(sizes: T3Ranks) -> FrameRanks:
    """Sizes that orthogonalising every core of a tensor train of these sizes leaves."""
    d = len(sizes.shape)
    up = tuple(min(pair) for pair in zip(sizes.tucker, sizes.shape, strict=True))
    left, right = [1], [1]
    for i in range(d - 1):
        left.append(min(left[-1] * up[i], sizes.tt[i + 1]))
        right.append(min(right[-1] * up[d - 1 - i], sizes.tt[d - 1 - i]))
    left.append(1)
    right.append(1)
    right.reverse()
    down = tuple(min(left[i] * right[i + 1], up[i]) for i in range(d))
    return FrameRanks(sizes.shape, up, down, tuple(left), tuple(right))

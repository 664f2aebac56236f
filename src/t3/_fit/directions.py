"""Where a fit asks for larger ranks: directions of its residual that the ranks of a tensor exclude.

The transpose of the samples brings the residual back to a tensor Z. What a bond k could gain is the
part of Z over two neighbouring modes, ``(a_k N_k, N_{k+1} b_{k+2})`` between the frame's left and
right cores, outside of the columns and rows that the tensor has there: its singular values say how
much, its singular vectors where to. The whole matrix is never formed. A random sketch of its columns
gives the rows that matter, and those the columns: two passes over the probes for all bonds together.
What a Tucker basis could gain alone is the part of Z over one mode outside of the basis.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from t3._fit.geometry import Corewise
from t3._fit.methods.method import objective as _objective
from t3._fit.problem import LeastSquares
from t3._sampling.chunk_size import resolve_chunk_size
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.ranks import minimal_ranks

Ranks = tuple[tuple[int, ...], tuple[int, ...]]

_SKETCH = 8  # random columns more than directions wanted


class Bond(NamedTuple):
    """New directions of one bond, in order of their gain.

    Attributes:
        gains: singular values ``(q,)``.
        left: ``(a, N, q)``, in all of its mode's space.
        right: ``(q, N, b)``.
    """

    gains: np.ndarray
    left: np.ndarray
    right: np.ndarray


class Directions(NamedTuple):
    """What larger ranks could gain at a point.

    Attributes:
        left, right: cores of the frame in full mode bases, d arrays ``(r, N, r')``.
        bases: full orthonormal mode bases, the Tucker basis first, d arrays ``(N, N)``.
        bonds: of the d - 1 inner bonds.
        tucker: parts over one mode outside of its basis, d arrays ``(a, N - n, b)``.
    """

    left: list[np.ndarray]
    right: list[np.ndarray]
    bases: list[np.ndarray]
    bonds: list[Bond]
    tucker: list[np.ndarray]


def directions(problem: LeastSquares, x: TuckerTensorTrain, most: int, seed: int = 0) -> Directions:
    """Directions of steepest descent at `x` that its ranks exclude, at most `most` a bond.

    Args:
        problem: in the storage of `x`.
        x: of minimal ranks, near the best tensor of its ranks.
        most: for each bond.
        seed: of the sketch.

    Cost: two gradients whose Tucker ranks are the mode sizes.
    """
    rng = np.random.default_rng(seed)
    frame = T3Frame.from_t3(x).unpack()
    up = [np.asarray(u, np.float64) for u in frame.up_tucker]
    bases = [np.linalg.qr(np.concatenate([u.T, np.eye(u.shape[1])], 1))[0].T for u in up]
    for u, basis in zip(up, bases, strict=True):
        basis[: len(u)] = u  # qr may have turned signs
    d = len(up)

    def in_full_bases(cores):
        widths = [(0, len(basis) - core.shape[1]) for core, basis in zip(cores, bases, strict=True)]
        return [
            np.pad(np.asarray(core, np.float64), [(0, 0), width, (0, 0)])
            for core, width in zip(cores, widths, strict=True)
        ]

    left, right = in_full_bases(frame.left_tt), in_full_bases(frame.right_tt)

    def outside_left(k, columns):
        """Without the columns of the left core of mode k."""
        own = left[k].reshape(-1, left[k].shape[2])
        return columns - own @ (own.T @ columns)

    def outside_right(k, rows):
        own = right[k].reshape(right[k].shape[0], -1)
        return rows - (rows @ own.T) @ own

    sketches = []
    for k in range(d - 1):
        a, n, taken = left[k].shape
        count = min(most + _SKETCH, a * n - taken)
        columns = outside_left(k, rng.standard_normal((a * n, count)))
        sketches.append(np.linalg.qr(columns)[0].reshape(a, n, count))
    wide_left, before = [], 0
    for k in range(d):
        fresh = sketches[k] if k < d - 1 else np.zeros((left[k].shape[0], left[k].shape[1], 0))
        core = np.concatenate([left[k], fresh], axis=2)
        wide_left.append(np.pad(core, [(0, before), (0, 0), (0, 0)]))
        before = fresh.shape[2]
    train = _gradient(problem, x, bases, wide_left, right)
    tucker = [
        train[i][: left[i].shape[0], frame.sizes.up[i] :, : right[i].shape[2]] for i in range(d)
    ]
    rows = []
    for k in range(d - 1):
        core = train[k + 1]
        sketch = core[left[k].shape[2] :].reshape(-1, core.shape[1] * core.shape[2])
        _, s, v = np.linalg.svd(outside_right(k + 1, sketch), full_matrices=False)
        # What is zero to rounding points anywhere, into the ranks there are too.
        count = min(most, int(np.sum(s > 1e-10 * np.max(s, initial=0.0))))
        rows.append(v[:count].reshape(-1, *core.shape[1:]))
    wide_right, after = [], 0
    for k in reversed(range(d)):
        fresh = rows[k - 1] if k else np.zeros((0, *right[k].shape[1:]))
        core = np.concatenate([right[k], fresh], axis=0)
        wide_right.insert(0, np.pad(core, [(0, 0), (0, 0), (0, after)]))
        after = len(fresh)
    train = _gradient(problem, x, bases, left, wide_right)
    bonds = []
    for k in range(d - 1):
        columns = train[k][:, :, right[k].shape[2] :]
        matrix = outside_left(k, columns.reshape(-1, columns.shape[2]))
        u, s, w = np.linalg.svd(matrix, full_matrices=False)
        v = np.tensordot(w, rows[k], 1)
        bonds.append(Bond(s, u.reshape(*columns.shape[:2], -1), v))
    return Directions(left, right, bases, bonds, tucker)


def grown(
    problem: LeastSquares,
    x: TuckerTensorTrain,
    *,
    growth: int,
    share: float = 0.0,
    max_ranks: Ranks | None = None,
    ranks: Ranks | None = None,
) -> TuckerTensorTrain:
    """The tensor moved, and grown, down the directions that its ranks exclude.

    Args:
        problem: in the storage of `x`.
        x: near the best tensor of its ranks.
        growth: most added to a rank.
        share: of the largest gain, below which a direction is left out.
        max_ranks: not to exceed.
        ranks: to have, whatever the gains.

    Returns:
        A tensor of the ranks that the gains ask for; `x` itself where none can grow.

    Cost: of `directions`, and two values of the objective.
    """
    x = x.squash()
    found = directions(problem, x, growth)
    wanted = _asked(found, x, share, growth, max_ranks) if ranks is None else ranks
    if wanted == (x.tucker_ranks, x.tt_ranks):
        return x
    # The samples are linear in the tensor: the objective along a line is a parabola.
    value, slope = float(_objective(problem, x)), -_square(found)
    if slope == 0:
        return _moved(found, x, wanted, 0.0)
    trial = -value / slope
    curvature = 2 * (
        float(_objective(problem, _moved(found, x, wanted, trial))) - value - slope * trial
    )
    length = -slope * trial**2 / curvature if curvature > 0 else trial
    return _moved(found, x, wanted, length)


def _asked(found: Directions, x: TuckerTensorTrain, share, growth, max_ranks) -> Ranks:
    """Ranks that hold the directions whose gain is a share of the largest."""
    shape, n, r = x.shape, x.tucker_ranks, x.tt_ranks
    tucker_gains = []
    for i, rank in enumerate(n):
        # What of all directions over this mode lies outside of its basis.
        parts = [found.tucker[i]]
        if i < len(n) - 1:
            parts.append((found.bonds[i].left * found.bonds[i].gains)[:, rank:])
        if i > 0:
            bond = found.bonds[i - 1]
            parts.append((bond.right * bond.gains[:, None, None])[:, rank:])
        columns = [part.transpose(1, 0, 2).reshape(part.shape[1], -1) for part in parts]
        tucker_gains.append(np.linalg.svd(np.concatenate(columns, axis=1), compute_uv=False))
    gains = [bond.gains for bond in found.bonds]
    level = share * max((g[0] for g in (*gains, *tucker_gains) if g.size), default=0.0)

    def more(ranks, gains):
        return [r + int(np.sum(g[:growth] > level)) for r, g in zip(ranks, gains, strict=True)]

    tucker, train = more(n, tucker_gains), [1, *more(r[1:-1], gains), 1]
    if max_ranks is not None:

        def cap(have, want, most):
            return [max(h, min(w, m)) for h, w, m in zip(have, want, most, strict=True)]

        tucker, train = cap(n, tucker, max_ranks[0]), cap(r, train, max_ranks[1])
    return minimal_ranks(shape, tuple(tucker), tuple(train))


def _square(found: Directions) -> float:
    """Of the norm of all directions together."""
    return sum(float(np.sum(bond.gains**2)) for bond in found.bonds) + sum(
        float(np.sum(part**2)) for part in found.tucker
    )


def _moved(
    found: Directions, x: TuckerTensorTrain, ranks: Ranks, length: float
) -> TuckerTensorTrain:
    """`x` moved by a length down the directions found, cut to some ranks."""
    cores, empty = [], np.zeros((0, 0, 0))
    for i, (left, right, part) in enumerate(
        zip(found.left, found.right, found.tucker, strict=True)
    ):
        # A bond is on the point itself, has just left it at this bond, or has left it before.
        leave = (
            -length * found.bonds[i].left * found.bonds[i].gains if i < len(found.bonds) else empty
        )
        enter = found.bonds[i - 1].right if i else empty
        starts = np.cumsum([0, left.shape[0], enter.shape[0], right.shape[0]])
        ends = np.cumsum([0, left.shape[2], leave.shape[2], right.shape[2]])
        core = np.zeros((starts[-1], left.shape[1], ends[-1]))
        core[: starts[1], :, : ends[1]] = left
        if leave.size:
            core[: starts[1], :, ends[1] : ends[2]] = leave
        core[: starts[1], left.shape[1] - part.shape[1] :, ends[2] :] = -length * part
        if enter.size:
            core[starts[1] : starts[2], :, ends[2] :] = enter
        core[starts[2] :, :, ends[2] :] = right
        cores.append(core)
    cores[0], cores[-1] = cores[0][:1], cores[-1].sum(axis=2, keepdims=True)
    cast = lambda arrays: tuple(jnp.asarray(a, x.dtype) for a in arrays)  # noqa: E731
    y = TuckerTensorTrain(cast(found.bases), cast(cores)).round(ranks=ranks)
    return y.pack() if x.is_packed else y


def _gradient(problem, x, bases, left, right) -> list[np.ndarray]:
    """Train part of the residual brought back between these cores."""
    cast = lambda cores: tuple(jnp.asarray(core, x.dtype) for core in cores)  # noqa: E731
    down = [np.zeros((p.shape[0], 1, q.shape[2])) for p, q in zip(left, right, strict=True)]
    frame = T3Frame(cast(bases), cast(down), cast(left), cast(right))
    size = resolve_chunk_size(
        "auto",
        frame,
        problem.measured.probes.count,
        problem.measured.orders,
        form=problem.measured.form,
        n_shards=1 if problem.split is None else problem.split.count,
    )
    plain = LeastSquares(problem.measured, problem.square_weight, None, size, problem.split)
    gradient = frame.unpack_variations(
        _raw_gradient(plain, x, frame.pack() if x.is_packed else frame)
    )
    return [np.asarray(core, np.float64) for core in gradient.tt]


@eqx.filter_jit
def _raw_gradient(problem: LeastSquares, x: TuckerTensorTrain, frame: T3Frame) -> T3Variations:
    return problem.value_and_gradient(Corewise(), x, frame)[1]

"""Frames and variations: a point of the manifold seen from each of its cores."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t3._tensor.format import TuckerTensorTrain
from t3._tensor.network import HoleTrains, Network, T3Variations
from t3._tensor.orthogonal import orthogonal_frame
from t3._tensor.packing import (
    Cores,
    as_cores,
    end_vector,
    flip_modes,
    is_packed,
    map_modes,
    split_padded,
    stack_padded,
)
from t3._tensor.ranks import FrameRanks, T3Ranks, frame_ranks


class T3Frame(Network):
    """The cores around every possible hole of a Tucker tensor train.

    A tangent at the point that the frame represents is a sum of 2 d trains, each with one hole
    filled by a variation (parentheses)::

        left_0 - (tt_1) - right_2        left_0 - down_1 - right_2
          |        |         |             |        |         |
         up_0     up_1      up_2          up_0  (tucker_1)   up_2

    In an orthogonal frame (`from_t3`) up cores have orthonormal rows, left, right and down cores
    are orthonormal towards the hole. The last left core and the first right core are in no hole's
    train; they carry the point itself, which is ``up`` with ``left``, and also ``up`` with
    ``right``.

    Attributes:
        up_tucker: d arrays ``(nU_i, N_i)``, or packed ``(d, nU, N)``.
        down_tt: d arrays ``(rL_i, nO_i, rR_{i+1})``, or packed.
        left_tt: d arrays ``(rL_i, nU_i, rL_{i+1})``, or packed.
        right_tt: d arrays ``(rR_i, nU_i, rR_{i+1})``, or packed.
        ranks: true sizes when packed, None when ragged.

    Raises:
        ValueError: cores whose sizes do not chain, or packed cores without `ranks`.

    Source: Alger, Christierson, Chen and Ghattas (2026), arXiv:2603.21141, appendix A.3.
    """

    up_tucker: Cores = eqx.field(converter=as_cores)
    down_tt: Cores = eqx.field(converter=as_cores)
    left_tt: Cores = eqx.field(converter=as_cores)
    right_tt: Cores = eqx.field(converter=as_cores)
    ranks: FrameRanks | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.is_packed:
            if self.ranks is None:
                raise ValueError("A packed frame needs ranks=FrameRanks(...); or use frame.pack().")
            return
        families = (self.up_tucker, self.down_tt, self.left_tt, self.right_tt)
        if len({len(family) for family in families}) != 1 or not self.up_tucker:
            raise ValueError(
                f"A frame needs the same positive number of up, down, left and right cores, got "
                f"{[len(family) for family in families]}."
            )
        for i, (u, o, p, q) in enumerate(zip(*families, strict=True)):
            dims = [u.ndim, o.ndim, p.ndim, q.ndim]
            before = self.left_tt[i - 1].shape[2], self.right_tt[i - 1].shape[2]
            if dims != [2, 3, 3, 3] or not (
                p.shape[1] == q.shape[1] == u.shape[0]
                and (o.shape[0], o.shape[2]) == (p.shape[0], q.shape[2])
                and (i == 0 or before == (p.shape[0], q.shape[0]))
            ):
                raise ValueError(
                    f"Frame cores of mode {i} do not fit: up {u.shape}, down {o.shape}, left "
                    f"{p.shape}, right {q.shape}; expected (nU, N), (rL, nO, rR'), (rL, nU, rL'), "
                    f"(rR, nU, rR') with rL, rR equal to the mode before's rL', rR'."
                )

    @property
    def is_packed(self) -> bool:
        return is_packed(self.up_tucker)

    @property
    def sizes(self) -> FrameRanks:
        """True sizes, whichever the storage."""
        if self.ranks is not None:
            return self.ranks
        return FrameRanks(
            tuple(u.shape[1] for u in self.up_tucker),
            tuple(u.shape[0] for u in self.up_tucker),
            tuple(o.shape[1] for o in self.down_tt),
            (*(p.shape[0] for p in self.left_tt), self.left_tt[-1].shape[2]),
            (*(q.shape[0] for q in self.right_tt), self.right_tt[-1].shape[2]),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes.shape

    @property
    def dtype(self) -> Any:
        return self.up_tucker[0].dtype

    @property
    def left_end(self) -> Array:
        """Closes the bond left of the first mode, ``(rL_0,)`` or padded."""
        return end_vector(self.sizes.left[0], self.left_tt[0].shape[0], self.dtype)

    @property
    def right_end(self) -> Array:
        """Closes the bond right of the last mode, ``(rR_d,)`` or padded."""
        return end_vector(self.sizes.right[-1], self.right_tt[-1].shape[2], self.dtype)

    @property
    def hole_sizes(self) -> FrameRanks:
        """The same as `sizes`."""
        return self.sizes

    @property
    def holes(self) -> HoleTrains:
        """The cores around the holes, for sampling."""
        s = self.sizes
        families = self.up_tucker, self.down_tt, self.left_tt, self.right_tt
        return HoleTrains(*families, self.left_end[: s.left[0]], self.right_end[: s.right[-1]])

    @staticmethod
    def from_t3(x: TuckerTensorTrain) -> "T3Frame":
        """Orthogonal frame at `x`, of the same storage.

        Ranks that the shape makes impossible are cut one side at a time; end bonds become 1. At a
        rank deficient point the bases are completed arbitrarily, so that the frame is orthogonal
        everywhere, at zero too.

        Derivatives: those of gauge-independent functions of the frame are exact where the ranks of
        `x` are its true ones. Where they are not, the tangent space is not continuous; then they
        are those of the frame at the true ranks, and finite.

        Cost: d (N n^2 + n r^3) multiply-adds, forward and backward.
        """
        x = x.squash()
        sizes = x.sizes
        ranks = frame_ranks(sizes)
        up, down, left, right = orthogonal_frame(x.tucker_cores, x.tt_cores, sizes)
        return T3Frame(up, down, left, right, ranks if x.is_packed else None)

    def is_orthogonal(self) -> bool:
        """Whether up, down, left and right cores are orthonormal towards their holes, to rounding.

        Raises:
            ValueError: on traced values.

        Cost: on the host, d (N n^2 + n r^3) multiply-adds.
        """
        if self._is_traced():
            raise ValueError("is_orthogonal reads values: call it outside of jit, vmap and grad.")
        # Concrete cores may be closed over by a function that is being traced.
        with jax.ensure_compile_time_eval():
            x = self.unpack()
        up, down, left, right = (
            [np.asarray(core) for core in family]
            for family in (x.up_tucker, x.down_tt, x.left_tt, x.right_tt)
        )
        # The last left core and the first right core carry the point, and are in no hole's train.
        rows = [
            *up,
            *(o.transpose(1, 0, 2).reshape(o.shape[1], -1) for o in down),
            *(p.reshape(-1, p.shape[2]).T for p in left[:-1]),
            *(q.reshape(q.shape[0], -1) for q in right[1:]),
        ]
        # Sums of up to thousands of products, each rounded.
        bound = 1e3 * float(jnp.finfo(self.dtype).eps)
        return all(np.abs(m @ m.T - np.eye(len(m), dtype=m.dtype)).max() <= bound for m in rows)

    def _is_traced(self) -> bool:
        return any(isinstance(core, jax.core.Tracer) for core in jax.tree.leaves(self))

    def check_orthogonal(self, name: str) -> None:
        """Raises ValueError where the frame is concrete and not orthogonal, as `name` needs it."""
        if self._is_traced() or self.is_orthogonal():
            return
        raise ValueError(
            f"{name} needs an orthogonal frame, and this one's cores are not orthonormal towards their "
            "holes: make one by T3Frame.from_t3, here of frame.to_t3()."
        )

    def to_t3(self) -> TuckerTensorTrain:
        """The point that the frame is attached to."""
        sizes = self.sizes
        ranks = T3Ranks(sizes.shape, sizes.up, sizes.right)
        return TuckerTensorTrain(self.up_tucker, self.right_tt, ranks if self.is_packed else None)

    def to_dense(self) -> Array:
        """The point as a dense array. Cost: memory of all entries."""
        return self.to_t3().to_dense()

    def reverse(self) -> "T3Frame":
        """The frame of the tensor with its modes in reversed order."""
        turn = lambda family: flip_modes(map_modes(lambda g: g.transpose(2, 1, 0), family))  # noqa: E731
        ranks = None
        if self.is_packed:
            s = self.sizes
            ranks = FrameRanks(*(side[::-1] for side in (s.shape, s.up, s.down, s.right, s.left)))
        return T3Frame(
            flip_modes(self.up_tucker),
            turn(self.down_tt),
            turn(self.right_tt),
            turn(self.left_tt),
            ranks,
        )

    def pack(self) -> "T3Frame":
        """Stacked zero-padded storage (see `t3.TuckerTensorTrain.pack`)."""
        if self.is_packed:
            return self
        s = self.sizes
        n, nu, no, rl, rr = (max(side) for side in (s.shape, s.up, s.down, s.left, s.right))
        return T3Frame(
            stack_padded(self.up_tucker, (nu, n)),
            stack_padded(self.down_tt, (rl, no, rr)),
            stack_padded(self.left_tt, (rl, nu, rl)),
            stack_padded(self.right_tt, (rr, nu, rr)),
            s,
        )

    def unpack(self) -> "T3Frame":
        """Ragged storage."""
        if not self.is_packed:
            return self
        s = self.sizes
        trios = lambda a, n, b: list(zip(a[:-1], n, b[1:], strict=True))  # noqa: E731
        return T3Frame(
            split_padded(self.up_tucker, list(zip(s.up, s.shape, strict=True))),
            split_padded(self.down_tt, trios(s.left, s.down, s.right)),
            split_padded(self.left_tt, trios(s.left, s.up, s.left)),
            split_padded(self.right_tt, trios(s.right, s.up, s.right)),
        )

    def pack_variations(self, variations: T3Variations) -> T3Variations:
        """Stacked zero-padded variations that fit this frame packed."""
        if variations.is_packed:
            return variations
        s = self.sizes
        return T3Variations(
            stack_padded(variations.tucker, (max(s.down), max(s.shape))),
            stack_padded(variations.tt, (max(s.left), max(s.up), max(s.right))),
        )

    def unpack_variations(self, variations: T3Variations) -> T3Variations:
        """Ragged variations that fit this frame unpacked."""
        if not variations.is_packed:
            return variations
        s = self.sizes
        return T3Variations(
            split_padded(variations.tucker, list(zip(s.down, s.shape, strict=True))),
            split_padded(variations.tt, list(zip(s.left[:-1], s.up, s.right[1:], strict=True))),
        )

    def variation_shapes(self) -> tuple[tuple, tuple]:
        """True shapes of the Tucker and train variations that fit."""
        s = self.sizes
        return (
            tuple(zip(s.down, s.shape, strict=True)),
            tuple(zip(s.left[:-1], s.up, s.right[1:], strict=True)),
        )

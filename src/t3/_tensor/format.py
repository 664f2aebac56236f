"""The Tucker tensor train: storage, construction, arithmetic."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import memory
from t3._sampling.methods import SampledTensor
from t3._tensor import algebra as _algebra
from t3._tensor import construct as _construct
from t3._tensor import rounding as _rounding
from t3._tensor.cores import TensorCores
from t3._tensor.orthogonal import orthogonal_frame
from t3._tensor.packing import (
    as_cores,
    flip_modes,
    map_modes,
    scalar_factor,
    split_padded,
    stack_padded,
)
from t3._tensor.ranks import T3Ranks, frame_ranks


class TuckerTensorTrain(TensorCores, SampledTensor):
    """A tensor in Tucker tensor train format.

    ``X[i_1 .. i_d] = 1^T G_1(B_1 e_{i_1}) ... G_d(B_d e_{i_d}) 1``, where ``G(v)`` is the matrix
    ``sum_n G[:, n, :] v_n``. End bonds are contracted with ones.

    Attributes:
        tucker_cores: d arrays ``(n_i, N_i)``; packed ``(d, n, N)``.
        tt_cores: d arrays ``(r_i, n_i, r_{i+1})``; packed ``(d, r, n, r)``.
        ranks: true sizes when packed, None when ragged.

    Both storages hold the same tensor and have the same methods. Ragged cores have their own sizes
    and unroll loops over modes; packed cores (`pack`) are zero-padded and stacked, and compile in a
    time that does not grow with d. Ranks above `minimal_ranks` are allowed: they are slack.

    Raises:
        ValueError: cores whose sizes do not chain, or packed cores without `ranks`.
    """

    # NumPy's arrays would take a tensor for an object to multiply with each of their entries.
    __array_ufunc__ = None

    # Construction.

    @staticmethod
    def random(
        key: Array,
        shape: Sequence[int],
        tucker_ranks: Sequence[int],
        tt_ranks: Sequence[int],
        *,
        dtype: Any = float,
    ) -> "TuckerTensorTrain":
        """Standard normal cores.

        Raises:
            ValueError: ranks of wrong number, or below 1.
        """
        sizes = _construct.checked_sizes(shape, tucker_ranks, tt_ranks)
        tucker_cores, tt_cores = _construct.random_cores(key, sizes, dtype)
        return TuckerTensorTrain(tucker_cores, tt_cores)

    @staticmethod
    def zeros(
        shape: Sequence[int],
        tucker_ranks: Sequence[int],
        tt_ranks: Sequence[int],
        *,
        dtype: Any = float,
    ) -> "TuckerTensorTrain":
        """The zero tensor, with room for these ranks.

        Raises:
            ValueError: ranks of wrong number, or below 1.
        """
        sizes = _construct.checked_sizes(shape, tucker_ranks, tt_ranks)
        tucker_cores, tt_cores = _construct.zero_cores(sizes, dtype)
        return TuckerTensorTrain(tucker_cores, tt_cores)

    @staticmethod
    def from_dense(
        array: Array | np.ndarray,
        *,
        tolerance: float | None = None,
        ranks: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> "TuckerTensorTrain":
        """Truncated singular value decompositions of the unfoldings (T3-SVD).

        Args:
            array: d axes.
            tolerance: relative Frobenius error allowed; eager only. Default 0: exact to rounding.
            ranks: instead of a tolerance, ``(tucker_ranks, tt_ranks)``; works under transformations.

        Raises:
            ValueError: as `round`, and for an array without entries.

        Cost: a singular value decomposition of every unfolding.
        """
        if not hasattr(array, "shape"):
            raise ValueError(f"from_dense takes an array, got {type(array).__name__}.")
        dense = as_cores(array)
        tucker, train = _construct.exact_cores(dense)
        x = TuckerTensorTrain(tucker, train)
        return x.round(tolerance=tolerance, ranks=ranks)

    @staticmethod
    def from_tensor_train(cores: Sequence[Array | np.ndarray]) -> "TuckerTensorTrain":
        """A tensor train, cores ``(r_i, N_i, r_{i+1})``: its Tucker cores are identities."""
        cores = as_cores(tuple(cores))
        return TuckerTensorTrain(tuple(jnp.eye(g.shape[1], dtype=g.dtype) for g in cores), cores)

    @staticmethod
    def from_canonical(factors: Sequence[Array | np.ndarray]) -> "TuckerTensorTrain":
        """A sum of R outer products, factors ``(R, N_i)``: all ranks become R, end bonds 1."""
        cores = as_cores(tuple(factors))
        return TuckerTensorTrain(cores, _construct.diagonal_cores(cores)).squash()

    # Storage.

    def pack(self) -> "TuckerTensorTrain":
        """Stacked zero-padded storage of the same tensor."""
        if self.is_packed:
            return self
        s = self.sizes
        n, r = max(s.tucker), max(s.tt)
        return TuckerTensorTrain(
            stack_padded(self.tucker_cores, (n, max(s.shape))),
            stack_padded(self.tt_cores, (r, n, r)),
            s,
        )

    def unpack(self) -> "TuckerTensorTrain":
        """Ragged storage of the same tensor."""
        if not self.is_packed:
            return self
        s = self.sizes
        return TuckerTensorTrain(
            split_padded(self.tucker_cores, list(zip(s.tucker, s.shape, strict=True))),
            split_padded(self.tt_cores, list(zip(s.tt[:-1], s.tucker, s.tt[1:], strict=True))),
        )

    def save(self, path: Any) -> None:
        """Write the cores to an ``.npz`` file (ragged; `load` restores the storage).

        A file that is there already is replaced at once, when the new one is complete. `path` may be an
        open file too.
        """
        x = self.unpack()
        arrays: Any = {f"tucker_{i}": np.asarray(b) for i, b in enumerate(x.tucker_cores)}
        arrays |= {f"train_{i}": np.asarray(g) for i, g in enumerate(x.tt_cores)}
        memory.save_arrays(path, "tensor", arrays, {"packed": self.is_packed})

    @staticmethod
    def load(path: Any) -> "TuckerTensorTrain":
        """Read what `save` wrote.

        Raises:
            memory.FileError: a file that holds no tensor, or not all of one.
        """
        arrays, about = memory.load_arrays(path, "tensor")
        d = len(arrays) // 2
        x = TuckerTensorTrain(
            tuple(arrays[f"tucker_{i}"] for i in range(d)),
            tuple(arrays[f"train_{i}"] for i in range(d)),
        )
        return x.pack() if about["packed"] else x

    # The tensor.

    def to_dense(self) -> Float[Array, "..."]:
        """All entries. Cost: memory of all entries."""
        x = self.unpack()
        dense = x.left_end
        for b, g in zip(x.tucker_cores, x.tt_cores, strict=True):
            dense = jnp.tensordot(dense, jnp.einsum("anb,nN->aNb", g, b), 1)
        return dense @ x.right_end

    def squash(self) -> "TuckerTensorTrain":
        """The same tensor with end bonds of 1."""
        cores, sizes = _algebra.squash(
            self.tucker_cores, self.tt_cores, self.sizes, self.left_end, self.right_end
        )
        return self._like(self.tucker_cores, cores, sizes)

    def reverse(self) -> "TuckerTensorTrain":
        """The tensor with its modes in reversed order."""
        s = self.sizes
        return self._like(
            flip_modes(self.tucker_cores),
            flip_modes(map_modes(lambda g: g.transpose(2, 1, 0), self.tt_cores)),
            T3Ranks(s.shape[::-1], s.tucker[::-1], s.tt[::-1]),
        )

    def orthogonalize(self) -> "TuckerTensorTrain":
        """The same tensor with orthonormal Tucker rows and left-orthogonal train cores but the last.

        Ranks that the shape makes impossible from the left are cut. Derivatives as in
        `T3Frame.from_t3`.
        """
        x = self.squash()
        up, _, left, _ = orthogonal_frame(x.tucker_cores, x.tt_cores, x.sizes)
        s = frame_ranks(x.sizes)
        return self._like(up, left, T3Ranks(s.shape, s.up, s.left))

    # Arithmetic.

    def __add__(self, other: "TuckerTensorTrain") -> "TuckerTensorTrain":
        """Sum of tensors. Ranks add; `round` brings them down."""
        a, b = self._matched(other)
        tucker_cores, tt_cores, sizes = _algebra.add_cores(
            (a.tucker_cores, a.tt_cores), a.sizes, (b.tucker_cores, b.tt_cores), b.sizes
        )
        return self._like(tucker_cores, tt_cores, sizes).squash()

    def __radd__(self, other) -> "TuckerTensorTrain":
        # Where `sum` starts.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: "TuckerTensorTrain") -> "TuckerTensorTrain":
        return self + (-other)

    def __neg__(self) -> "TuckerTensorTrain":
        return self * -1

    def __mul__(self, other) -> "TuckerTensorTrain":
        """Product with a scalar, or entrywise with a tensor (ranks multiply)."""
        if isinstance(other, TuckerTensorTrain):
            a, b = self._matched(other)
            tucker_cores, tt_cores, sizes = _algebra.multiply_cores(
                (a.tucker_cores, a.tt_cores), a.sizes, (b.tucker_cores, b.tt_cores), b.sizes
            )
            return self._like(tucker_cores, tt_cores, sizes)
        if np.ndim(other) != 0:
            raise ValueError(
                f"A Tucker tensor train multiplies a scalar or another one, got an array of shape "
                f"{jnp.shape(other)}. TuckerTensorTrain.from_dense makes a tensor of it."
            )
        # One core carries the factor: the tensor is linear in each.
        scalar = scalar_factor(other, self.dtype)
        if self.is_packed:
            return self._like(self.tucker_cores, self.tt_cores.at[0].multiply(scalar), self.sizes)
        return self._like(
            self.tucker_cores, (self.tt_cores[0] * scalar, *self.tt_cores[1:]), self.sizes
        )

    __rmul__ = __mul__

    def __truediv__(self, scalar) -> "TuckerTensorTrain":
        """Quotient by a scalar.

        Raises:
            ZeroDivisionError: on a concrete zero, such as the norm of a zero tensor. Traced it gives NaN.
        """
        scalar = scalar_factor(scalar, self.dtype)
        if not isinstance(scalar, jax.core.Tracer) and scalar == 0:
            raise ZeroDivisionError(
                "division by zero: a tensor of norm 0 has no direction to normalise"
            )
        return self * (1 / scalar)

    def inner(self, other: "TuckerTensorTrain") -> Float[Array, ""]:
        """Sum of products of all entries. Cost: d (N n^2 + n r^3) multiply-adds."""
        a, b = self._matched(other)
        value, log_scale = _algebra.scaled_inner(
            (a.tucker_cores, a.tt_cores),
            (a.left_end, a.right_end),
            (b.tucker_cores, b.tt_cores),
            (b.left_end, b.right_end),
        )
        return value * jnp.exp(log_scale)

    def norm(self) -> Float[Array, ""]:
        """Frobenius norm, accurate for small differences too. Cost: one QR sweep."""
        value, log_scale = self._scaled_norm()
        return value * jnp.exp(log_scale)

    def log_norm(self) -> Float[Array, ""]:
        """Logarithm of the norm: finite where the norm itself overflows. -inf for zero."""
        value, log_scale = self._scaled_norm()
        return jnp.log(value) + log_scale

    def _scaled_norm(self):
        x = self.squash()
        return _algebra.scaled_norm(x.tucker_cores, x.tt_cores, x.sizes)

    # Truncation.

    def singular_values(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Singular values of the d Tucker unfoldings and the d - 1 train unfoldings."""
        x = self.squash()
        return _rounding.singular_values(x.tucker_cores, x.tt_cores, x.sizes)

    def ranks_within(self, tolerance: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ranks that `round` needs for a relative Frobenius error of `tolerance`. Eager only."""
        return _rounding.ranks_within(self.singular_values(), tolerance)

    def rounding_bound(self, ranks: tuple[Sequence[int], Sequence[int]]) -> Float[Array, ""]:
        """Bound on ``(x - x.round(ranks=ranks)).norm()``: root of all dropped squares.

        It is at most ``sqrt(2 d - 1)`` times the error of the best tensor of these ranks.
        """
        ranks = _rounding.check_ranks(ranks, self.squash().sizes, "rounding_bound")
        return _rounding.truncation_bound(self.singular_values(), ranks)

    def round(
        self,
        *,
        tolerance: float | None = None,
        ranks: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> "TuckerTensorTrain":
        """Truncate by singular values.

        Args:
            tolerance: relative Frobenius error allowed; eager only. Default 0: exact to rounding.
            ranks: instead of a tolerance, ``(tucker_ranks, tt_ranks)``; works under transformations.

        Returns:
            A tensor of these ranks whose error is at most `rounding_bound`. Its derivative is that
            of the projection, finite at rank deficient tensors and repeated singular values.

        Raises:
            ValueError: ranks above `minimal_ranks` (the text names them), both arguments given, a
                negative tolerance, or one under a transformation or for entries that are not
                finite.

        Cost: one QR sweep from each end, 2 d singular value decompositions.
        """
        if tolerance is not None and ranks is not None:
            raise ValueError("round takes a tolerance or ranks, not both.")
        x = self.squash()
        chosen = ranks is None
        if chosen:
            ranks = x.ranks_within(0.0 if tolerance is None else tolerance)
        ranks = _rounding.check_ranks(ranks, x.sizes, "round")
        tucker_cores, tt_cores = _rounding.truncate(x.tucker_cores, x.tt_cores, x.sizes, ranks)
        y = self._like(tucker_cores, tt_cores, T3Ranks(x.shape, *ranks))
        # Ranks chosen bond by bond may exceed what their neighbours allow: cutting those is exact.
        if chosen and y.minimal_ranks != ranks:
            return y.round(ranks=y.minimal_ranks)
        return y

    # Helpers.

    def _like(self, tucker_cores, tt_cores, sizes: T3Ranks) -> "TuckerTensorTrain":
        return TuckerTensorTrain(tucker_cores, tt_cores, sizes if self.is_packed else None)

    def _matched(self, other: "TuckerTensorTrain"):
        if not isinstance(other, TuckerTensorTrain):
            raise ValueError(
                f"A Tucker tensor train combines with another one, got {type(other).__name__}. "
                "TuckerTensorTrain.from_dense makes one of an array."
            )
        if self.shape != other.shape:
            raise ValueError(f"Tensors of shapes {self.shape} and {other.shape} do not combine.")
        return (self, other.pack()) if self.is_packed else (self, other.unpack())

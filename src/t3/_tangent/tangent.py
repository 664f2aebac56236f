"""Tangents: first-order changes of a Tucker tensor train that keep its ranks."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t3._sampling.methods import SampledTangent
from t3._tangent import manifold as _manifold
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import flip_modes, map_modes


class T3Tangent(SampledTangent):
    """A tangent: a frame, and a variation for each of its holes.

    Attributes:
        frame: of the point. `inner`, `norm`, `project`, `gauge`, `retract` and `transport` need
            it orthogonal (`T3Frame.from_t3`).
        variations: that fit the frame; ragged or packed like the frame.

    ``+`` and ``-`` combine tangents of one frame, ``*`` scales.

    Raises:
        ValueError: variations that do not fit the frame; tangents of different frames, and a frame that
            is not orthogonal where one is needed. Of traced frames only the sizes are compared.
    """

    # NumPy's arrays would take a tangent for an object to multiply with each of their entries.
    __array_ufunc__ = None

    frame: T3Frame
    variations: T3Variations

    def __check_init__(self):
        if self.frame.is_packed != self.variations.is_packed:
            raise ValueError(
                "Frame and variations must both be ragged or both packed; frame.pack_variations "
                "and frame.unpack_variations convert."
            )
        if self.frame.is_packed:
            return
        have = tuple(
            tuple(core.shape for core in side)
            for side in (self.variations.tucker, self.variations.tt)
        )
        if have != self.frame.variation_shapes():
            raise ValueError(
                f"Variations do not fit the frame: their shapes are {have}, expected "
                f"{self.frame.variation_shapes()}."
            )

    @staticmethod
    def zeros(frame: T3Frame) -> "T3Tangent":
        """The zero tangent at a frame."""
        tucker, train = frame.variation_shapes()
        zeros = T3Variations(
            tuple(jnp.zeros(shape, frame.dtype) for shape in tucker),
            tuple(jnp.zeros(shape, frame.dtype) for shape in train),
        )
        return T3Tangent(frame, frame.pack_variations(zeros) if frame.is_packed else zeros)

    @staticmethod
    def random(key: Array, frame: T3Frame) -> "T3Tangent":
        """Standard normal in the tangent space of an orthogonal frame (gauged)."""
        frame.check_orthogonal("random")
        shapes = frame.variation_shapes()
        keys = iter(jax.random.split(key, 2 * len(frame.shape)))
        normal = T3Variations(
            *(tuple(jax.random.normal(next(keys), s, frame.dtype) for s in side) for side in shapes)
        )
        if frame.is_packed:
            normal = frame.pack_variations(normal)
        return T3Tangent(frame, normal).project()

    @staticmethod
    def from_tensor(frame: T3Frame, x: TuckerTensorTrain) -> "T3Tangent":
        """Orthogonal projection of a tensor onto the tangent space of an orthogonal frame."""
        frame.check_orthogonal("from_tensor")
        return T3Tangent(frame, _manifold.project_tensor(frame, x))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.frame.shape

    def to_t3(self, *, include_point: bool = False) -> TuckerTensorTrain:
        """As a Tucker tensor train of twice the ranks, the point added if asked for."""
        return _manifold.tangent_to_t3(self.frame, self.variations, include_point=include_point)

    def to_dense(self, *, include_point: bool = False) -> Float[Array, "..."]:
        """As a dense array. Cost: memory of all entries."""
        return self.to_t3(include_point=include_point).to_dense()

    def project(self) -> "T3Tangent":
        """Orthogonal projection of the coordinates onto the gauged ones.

        What is not gauged is dropped: this turns a gradient in the coordinates (a transpose's
        output) into the Riemannian gradient. `gauge` keeps the tensor instead.
        """
        self.frame.check_orthogonal("project")
        return T3Tangent(self.frame, _manifold.project_variations(self.frame, self.variations))

    def gauge(self) -> "T3Tangent":
        """The same tensor in gauged coordinates."""
        self.frame.check_orthogonal("gauge")
        return T3Tangent(self.frame, _manifold.gauge_variations(self.frame, self.variations))

    def is_gauged(self) -> bool:
        """Whether the coordinates are gauged, to rounding; then the norm is that of the variations.

        Raises:
            ValueError: on traced values, and at a frame that is not orthogonal.
        """
        whole = self.variations
        off = self.project().variations - whole
        # Projecting rounds sums of up to thousands of products.
        bound = 1e3 * jnp.finfo(self.frame.dtype).eps
        return bool(off.dot(off) <= bound**2 * whole.dot(whole))

    def inner(self, other: "T3Tangent") -> Float[Array, ""]:
        """Inner product of the two tensors; both tangents belong to one orthogonal frame."""
        self._check_frame_of(other)
        return self.gauge().variations.dot(other.gauge().variations)

    def norm(self) -> Float[Array, ""]:
        """Frobenius norm of the tensor. Its gradient is zero at zero."""
        gauged = self.gauge().variations
        square = gauged.dot(gauged)
        # NaN is no zero, and stays.
        zero = square == 0
        return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, square)))

    def retract(self) -> TuckerTensorTrain:
        """Move from the point along the tangent and return to the ranks of the frame by truncation."""
        self.frame.check_orthogonal("retract")
        return _manifold.retract_variations(self.frame, self.variations)

    def transport(self, frame: T3Frame) -> "T3Tangent":
        """Orthogonal projection onto the tangent space of another orthogonal frame."""
        return T3Tangent.from_tensor(frame, self.to_t3())

    def reverse(self) -> "T3Tangent":
        """The tangent with the modes in reversed order."""
        turned = map_modes(lambda v: v.transpose(2, 1, 0), self.variations.tt)
        return T3Tangent(
            self.frame.reverse(),
            T3Variations(flip_modes(self.variations.tucker), flip_modes(turned)),
        )

    def _check_frame_of(self, other: "T3Tangent") -> None:
        if self.frame.sizes != other.frame.sizes or self.frame.is_packed != other.frame.is_packed:
            raise ValueError(
                f"Tangents of one frame combine, got frames of {self.frame.sizes} and "
                f"{other.frame.sizes}; other.transport(frame) projects onto another one."
            )
        if not _surely_equal(self.frame, other.frame):
            raise ValueError(
                "Tangents of one frame combine, got two frames of equal sizes whose cores differ; "
                "other.transport(frame) projects onto another one."
            )

    def __add__(self, other: "T3Tangent") -> "T3Tangent":
        self._check_frame_of(other)
        return T3Tangent(self.frame, self.variations + other.variations)

    def __sub__(self, other: "T3Tangent") -> "T3Tangent":
        self._check_frame_of(other)
        return T3Tangent(self.frame, self.variations - other.variations)

    def __mul__(self, scalar) -> "T3Tangent":
        return T3Tangent(self.frame, self.variations * scalar)

    __rmul__ = __mul__

    def __neg__(self) -> "T3Tangent":
        return T3Tangent(self.frame, -self.variations)


def _surely_equal(a: T3Frame, b: T3Frame) -> bool:
    """Whether two frames have equal cores; True where one is traced, since nothing shows the contrary."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        traced = isinstance(x, jax.core.Tracer) or isinstance(y, jax.core.Tracer)
        if x is not y and not traced and not np.array_equal(np.asarray(x), np.asarray(y)):
            return False
    return True

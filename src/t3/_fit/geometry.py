"""How a Tucker tensor train is moved: on the manifold of its ranks, or core by core.

A method of fitting knows a geometry only: a frame at a point, the projection of raw gradients, a
step. A geometry of one's own is a subclass of `Geometry`.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from t3._tangent import manifold as _manifold
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import set_mode
from t3._tensor.ranks import FrameRanks


class Geometry(eqx.Module):
    """What a direction is, and where it leads."""

    @abc.abstractmethod
    def start(self, x: TuckerTensorTrain) -> TuckerTensorTrain:
        """The same tensor in the form that steps keep; its end bonds are 1."""

    @abc.abstractmethod
    def frame(self, x: TuckerTensorTrain) -> T3Frame:
        """The cores around the holes of variations at `x`, whose end bonds must be 1."""

    @abc.abstractmethod
    def project(self, frame: T3Frame, v: T3Variations) -> T3Variations:
        """Raw gradient to the gradient of the geometry."""

    @abc.abstractmethod
    def step(self, x: TuckerTensorTrain, frame: T3Frame, v: T3Variations) -> TuckerTensorTrain:
        """Move from `x`, whose frame is given, along `v`."""

    @abc.abstractmethod
    def point(self, x: TuckerTensorTrain, frame: T3Frame) -> T3Variations:
        """Gradient of ``|x|^2 / 2``."""


class Manifold(Geometry):
    """Tensors of fixed ranks: gauged tangents of an orthogonal frame, and a retraction.

    A start above its minimal ranks is reduced to them.
    """

    def start(self, x: TuckerTensorTrain) -> TuckerTensorTrain:
        x = x.squash()
        least = x.minimal_ranks
        return x if least == (x.tucker_ranks, x.tt_ranks) else x.round(ranks=least)

    def frame(self, x: TuckerTensorTrain) -> T3Frame:
        return T3Frame.from_t3(x)

    def project(self, frame: T3Frame, v: T3Variations) -> T3Variations:
        return _manifold.project_variations(frame, v)

    def step(self, x: TuckerTensorTrain, frame: T3Frame, v: T3Variations) -> TuckerTensorTrain:
        return _manifold.retract_variations(frame, v)

    def point(self, x: TuckerTensorTrain, frame: T3Frame) -> T3Variations:
        # The point as a tangent: its last left core, all else zero.
        tucker, train = frame.variation_shapes()
        zeros = T3Variations(
            tuple(jnp.zeros(shape, frame.dtype) for shape in tucker),
            tuple(jnp.zeros(shape, frame.dtype) for shape in train),
        )
        if not frame.is_packed:
            return T3Variations(zeros.tucker, set_mode(zeros.tt, -1, frame.left_tt[-1]))
        zeros = frame.pack_variations(zeros)
        # The end bond is 1 from both sides; only the padding may differ.
        last = frame.left_tt[-1][:, :, :1]
        return T3Variations(zeros.tucker, set_mode(zeros.tt, -1, last))


class Corewise(Geometry):
    """The numbers in the cores, as an optimiser of networks sees them.

    A start is given cores of about equal size, by powers of two, which leave the tensor as it is:
    a step of one length in all of them would else move the small ones far and the large ones never.
    """

    def start(self, x: TuckerTensorTrain) -> TuckerTensorTrain:
        x = x.squash()
        ragged = x.unpack()
        cores = (*ragged.tucker_cores, *ragged.tt_cores)
        logs = [_log2_size(core) for core in cores]
        if not all(map(math.isfinite, logs)):
            return x
        shifts = [round(sum(logs) / len(logs) - log) for log in logs]
        # All shifts add up to nothing: what rounding left over is shared out.
        rest = sum(shifts)
        for i in range(abs(rest)):
            shifts[i % len(shifts)] -= int(math.copysign(1, rest))
        scaled = [jnp.ldexp(core, shift) for core, shift in zip(cores, shifts, strict=True)]
        y = TuckerTensorTrain(tuple(scaled[: x.ndim]), tuple(scaled[x.ndim :]))
        return y.pack() if x.is_packed else y

    def frame(self, x: TuckerTensorTrain) -> T3Frame:
        s = x.sizes
        ranks = FrameRanks(s.shape, s.tucker, s.tucker, s.tt, s.tt) if x.is_packed else None
        return T3Frame(x.tucker_cores, x.tt_cores, x.tt_cores, x.tt_cores, ranks)

    def project(self, frame: T3Frame, v: T3Variations) -> T3Variations:
        return v

    def step(self, x: TuckerTensorTrain, frame: T3Frame, v: T3Variations) -> TuckerTensorTrain:
        cores = jax.tree.map(jnp.add, (x.tucker_cores, x.tt_cores), (v.tucker, v.tt))
        return TuckerTensorTrain(*cores, x.ranks)

    def point(self, x: TuckerTensorTrain, frame: T3Frame) -> T3Variations:
        slope = jax.grad(lambda z: z.inner(z) / 2)(x)
        return T3Variations(slope.tucker_cores, slope.tt_cores)


def _log2_size(core: Any) -> float:
    """Of the root mean square, without squares that leave the range of the type."""
    core = np.asarray(core, np.float64)
    most = np.max(np.abs(core))
    return float(np.log2(most * np.sqrt(np.mean((core / most) ** 2)))) if most > 0 else -math.inf


GEOMETRIES: dict[str, type[Geometry]] = {"manifold": Manifold, "corewise": Corewise}


def as_geometry(geometry: Any) -> Geometry:
    """The geometry of a short name, or itself.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(geometry, Geometry):
        return geometry
    if not isinstance(geometry, str) or geometry not in GEOMETRIES:
        raise ValueError(
            f'geometry must be "manifold", "corewise" or a t3.Geometry, got {geometry!r}.'
        )
    return GEOMETRIES[geometry]()


def geometry_field(default: str) -> Any:
    """A field of a method: a geometry, or its short name."""
    return eqx.field(default=default, converter=as_geometry, kw_only=True)

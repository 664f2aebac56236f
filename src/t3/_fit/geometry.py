"""Two ways to move a Tucker tensor train: on the manifold of its ranks, or core by core.

Both give the same five functions, so that an optimiser needs to know only those: a frame at a
point, a projection of raw gradients, a step, a transport of directions, and the point itself as a
direction.
"""

from typing import Literal

import jax.numpy as jnp

from t3._tangent import manifold as _manifold
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import set_mode
from t3._tensor.ranks import FrameRanks

Geometry = Literal["manifold", "corewise"]


def checked_geometry(geometry: str) -> Geometry:
    """Raises ValueError for an unknown name."""
    if geometry not in ("manifold", "corewise"):
        raise ValueError(f'geometry must be "manifold" or "corewise", got {geometry!r}.')
    return geometry


def frame_at(geometry: Geometry, x: TuckerTensorTrain) -> T3Frame:
    """Orthogonal frame, or the frame of the cores themselves. End bonds must be 1."""
    if geometry == "manifold":
        return T3Frame.from_t3(x)
    s = x.sizes
    ranks = FrameRanks(s.shape, s.tucker, s.tucker, s.tt, s.tt) if x.is_packed else None
    return T3Frame(x.tucker_cores, x.tt_cores, x.tt_cores, x.tt_cores, ranks)


def project(geometry: Geometry, frame: T3Frame, v: T3Variations) -> T3Variations:
    """Raw gradient to the gradient of the geometry."""
    return _manifold.project_variations(frame, v) if geometry == "manifold" else v


def step(
    geometry: Geometry, x: TuckerTensorTrain, frame: T3Frame, v: T3Variations
) -> TuckerTensorTrain:
    """Move from `x` along `v`."""
    if geometry == "manifold":
        return _manifold.retract_variations(frame, v)
    ranks = x.ranks
    add = lambda a, b: jnp.add(a, b) if x.is_packed else tuple(map(jnp.add, a, b))  # noqa: E731
    return TuckerTensorTrain(add(x.tucker_cores, v.tucker), add(x.tt_cores, v.tt), ranks)


def carry_over(
    geometry: Geometry, frame: T3Frame, v: T3Variations, new_frame: T3Frame
) -> T3Variations:
    """A direction at the frame of a new point."""
    if geometry == "corewise":
        return v
    return _manifold.project_tensor(new_frame, _manifold.tangent_to_t3(frame, v))


def point_direction(frame: T3Frame) -> T3Variations:
    """The point of an orthogonal frame as a tangent: its last left core, all else zero."""
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

"""Geometry of tensors of fixed ranks: projection onto tangent spaces, gauge, retraction."""

import jax
import jax.numpy as jnp

from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.algebra import squash
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.network import doubled_cores
from t3._tensor.packing import compact, concat_index, map_modes, per_mode, sweep
from t3._tensor.ranks import T3Ranks, minimal_ranks


@jax.jit
def project_variations(frame: T3Frame, variations: T3Variations) -> T3Variations:
    """Orthogonal projection onto gauged variations (`frame` must be orthogonal).

    Gauged means that Tucker variations are orthogonal to the up cores and train variations, all
    but the last, to the left cores. It drops what gauged variations cannot hold: a gradient in
    the coordinates becomes the Riemannian gradient.

    Cost: d (N n^2 + n r^3) multiply-adds.
    """
    tucker = map_modes(lambda v, u: v - (v @ u.T) @ u, variations.tucker, frame.up_tucker)

    def train(v, p, inner):
        along = jnp.einsum("anb,anc->bc", p, v)
        return v - jnp.einsum("anb,bc->anc", p, along) * jnp.asarray(inner, v.dtype)

    return T3Variations(tucker, map_modes(train, variations.tt, frame.left_tt, _inner(frame)))


@jax.jit
def gauge_variations(frame: T3Frame, variations: T3Variations) -> T3Variations:
    """The gauged variations of the same tangent (`frame` must be orthogonal).

    Cost: d (N n^2 + n r^3) multiply-adds.
    """

    def tucker(v, u, h, o):
        along = v @ u.T
        return v - along @ u, h + jnp.einsum("aob,on->anb", o, along)

    gauged, train = map_modes(
        tucker, variations.tucker, frame.up_tucker, variations.tt, frame.down_tt
    )

    def step(carry, mode):
        v, p, q, inner = mode
        v = v + jnp.einsum("ac,cnb->anb", carry, q)
        along = jnp.einsum("anb,anc->bc", p, v) * jnp.asarray(inner, v.dtype)
        return along, v - jnp.einsum("anb,bc->anc", p, along)

    first = frame.left_tt[0].shape[0], frame.right_tt[0].shape[0]
    _, train = sweep(
        step,
        jnp.zeros(first, frame.dtype),
        (train, frame.left_tt, frame.right_tt, _inner(frame)),
    )
    return T3Variations(gauged, train)


@jax.jit
def project_tensor(frame: T3Frame, x: TuckerTensorTrain) -> T3Variations:
    """Gauged variations of the orthogonal projection of `x` onto the tangent space of `frame`.

    Args:
        frame: orthogonal.
        x: of the same shape and storage.

    Cost: d (N n n_x + n r r_x (r + r_x)) multiply-adds.
    """
    x = (x.pack() if frame.is_packed else x.unpack()).squash()
    if x.shape != frame.shape:
        raise ValueError(f"A frame of shape {frame.shape} cannot project a tensor of {x.shape}.")
    cores = map_modes(
        lambda u, b, g: jnp.einsum("mn,anb->amb", u @ b.T, g),
        frame.up_tucker,
        x.tucker_cores,
        x.tt_cores,
    )

    def left_step(before, mode):
        core, p = mode
        after = jnp.einsum("knl,knb->lb", p, jnp.einsum("ka,anb->knb", before, core))
        return after, before

    def right_step(after, mode):
        core, q = mode
        before = jnp.einsum("knl,anl->ka", q, jnp.einsum("anb,lb->anl", core, after))
        return before, after

    start_left = jnp.outer(frame.left_end, x.left_end)
    start_right = jnp.outer(frame.right_end, x.right_end)
    _, before = sweep(left_step, start_left, (cores, frame.left_tt))
    _, after = sweep(right_step, start_right, (cores, frame.right_tt), reverse=True)

    def variations(left, core, g, right, o, b):
        train = jnp.einsum("ka,anb,lb->knl", left, core, right)
        hole = jnp.einsum("kol,ka,anb,lb->on", o, left, g, right, optimize="optimal")
        return hole @ b, train

    tucker, train = map_modes(
        variations, before, cores, x.tt_cores, after, frame.down_tt, x.tucker_cores
    )
    return project_variations(frame, T3Variations(tucker, train))


def tangent_to_t3(
    frame: T3Frame, variations: T3Variations, *, include_point: bool = False
) -> TuckerTensorTrain:
    """A tangent as a Tucker tensor train of about twice the ranks.

    Args:
        frame: any frame.
        variations: that fit it.
        include_point: add the point that the frame is attached to.
    """

    s = frame.sizes
    tucker_cores, tt_cores = doubled_cores(frame.holes, (variations.tucker, variations.tt))
    plus = lambda a, b: tuple(i + j for i, j in zip(a, b, strict=True))  # noqa: E731
    sizes = T3Ranks(s.shape, plus(s.up, s.down), plus(s.left, s.right))
    if frame.is_packed:
        ranks = concat_index(s.up, frame.up_tucker.shape[1], s.down)
        bonds = concat_index(s.left, frame.left_tt.shape[1], s.right)
        tucker_cores = compact(tucker_cores, ranks)
        tt_cores = compact(tt_cores, bonds[:-1], ranks, bonds[1:])
    # A train starts left of its hole; started right of one, it is the point itself.
    first, last = jnp.arange(tt_cores[0].shape[0]), jnp.arange(tt_cores[-1].shape[2])
    starts = s.left[0] + s.right[0] if include_point else s.left[0]
    left_end = (first < starts).astype(frame.dtype)
    right_end = ((last >= s.left[-1]) & (last < sizes.tt[-1])).astype(frame.dtype)
    tt_cores, sizes = squash(tucker_cores, tt_cores, sizes, left_end, right_end)
    return TuckerTensorTrain(tucker_cores, tt_cores, sizes if frame.is_packed else None)


def retract_variations(frame: T3Frame, variations: T3Variations) -> TuckerTensorTrain:
    """Point plus tangent, truncated to the ranks of the frame (a second order retraction)."""
    s = frame.sizes
    x = tangent_to_t3(frame, variations, include_point=True)
    bonds = tuple(min(pair) for pair in zip(s.left, s.right, strict=True))
    return x.round(ranks=minimal_ranks(s.shape, s.up, (1, *bonds[1:-1], 1)))


def _inner(frame: T3Frame):
    """1 for every mode but the last, whose variation carries no gauge."""
    d = len(frame.shape)
    return per_mode([1] * (d - 1) + [0], frame.left_tt)

"""The orthogonal frame of a Tucker tensor train as cores, and its derivative."""

from functools import partial

import jax
import jax.numpy as jnp

from t3._tensor.bonds import (
    BondSVD,
    before_modes,
    bond_grams,
    bond_svds,
    down_parts,
    inner_bonds,
    oblique_family,
    orthogonal_parts,
)
from t3._tensor.packing import Cores, map_modes, per_mode
from t3._tensor.ranks import T3Ranks, frame_ranks


@partial(jax.jit, static_argnums=2)
def orthogonal_frame(tucker_cores: Cores, tt_cores: Cores, sizes: T3Ranks) -> tuple[Cores, ...]:
    """Up, down, left and right cores; end bonds of the input must be 1."""

    def value(cores):
        tucker, train = cores
        parts = orthogonal_parts(tucker, train, sizes)
        centre = map_modes(lambda r, g: jnp.einsum("mn,anb->amb", r, g), parts.up_factor, train)
        up_sizes = sizes._replace(tucker=frame_ranks(sizes).up)
        down, down_factor = down_parts(centre, parts.left_in, parts.right_in, up_sizes)
        return (parts.up, down, parts.left, parts.right), parts, down_factor

    @jax.custom_jvp
    def run(cores):
        return value(cores)[0]

    @run.defjvp
    def run_jvp(primals, tangents):
        frame, parts, _ = value(primals[0])

        def smooth(cores):
            tucker, train = cores
            return _smooth_frame(tucker, train, frame[1], parts, sizes)

        return frame, jax.jvp(smooth, primals, tangents)[1]

    return run((tucker_cores, tt_cores))


def _smooth_frame(tucker_cores, tt_cores, down, parts, sizes: T3Ranks) -> tuple[Cores, ...]:
    """The same frame as products of the cores with bond matrices, for its derivative."""
    grams = bond_grams(tucker_cores, tt_cores)
    everything = per_mode(
        [max(*sizes.shape, *sizes.tucker, *sizes.tt)] * len(sizes.shape), tt_cores
    )
    fixed = jax.lax.stop_gradient(tt_cores)
    env, env_factor = down_parts(fixed, parts.left_in, parts.right_in, sizes)
    train = bond_svds(parts.left_out, parts.right_in)
    tucker = bond_svds(parts.up_factor, env_factor)

    def both_sides(gram_a, gram_b, factor_a, factor_b, svd):
        """Bond matrices towards each side, in the bases of the factors."""
        swapped = BondSVD(svd.v, svd.s, svd.u)
        turn = lambda m, u: m @ u.T  # noqa: E731
        one = oblique_family(gram_a, gram_b, factor_a, factor_b, svd, everything)
        two = oblique_family(gram_b, gram_a, factor_b, factor_a, swapped, everything)
        return (
            *(map_modes(turn, m, jax.lax.stop_gradient(svd.u)) for m in one),
            *(map_modes(turn, m, jax.lax.stop_gradient(svd.v)) for m in two),
        )

    to_left, from_left, to_right, from_right = both_sides(
        grams.left, grams.right, parts.left_out, parts.right_in, train
    )
    to_up, from_up, to_down, _ = both_sides(
        grams.tucker_left, grams.tucker_right, parts.up_factor, env_factor, tucker
    )
    # The frame's down basis spans what is left of the environment in the up basis.
    to_down = map_modes(lambda z, e, o: z @ jnp.einsum("kml,knl->mn", e, o), to_down, env, down)
    one = jnp.ones((1, 1), tt_cores[0].dtype)
    to_left, from_right = inner_bonds(to_left, one), inner_bonds(from_right, one)
    from_left, to_right = before_modes(from_left), before_modes(to_right)

    def around(before, core, middle, after):
        return jnp.einsum("ak,anb,nm,bl->kml", before, core, middle, after, optimize="optimal")

    return (
        map_modes(lambda z, b: z.T @ b, to_up, tucker_cores),
        map_modes(around, from_left, tt_cores, to_down, from_right),
        map_modes(around, from_left, tt_cores, from_up, to_left),
        map_modes(around, to_right, tt_cores, from_up, from_right),
    )

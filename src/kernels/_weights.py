"""A profile's weights inside of pair sums, and the derivative of those in its shape parameters."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from memory import map_sum


@runtime_checkable
class Profile(Protocol):
    """What a tile asks of a kernel; a pytree, whose leaves are shape parameters."""

    def weights(self, r2: Float[Array, "*shape"]) -> tuple[Array, Array, Array]: ...


def pair_weights(profile: Profile, r2: Float[Array, "*shape"]) -> tuple[Array, ...]:
    """(f, slope, curvature) of a tile, in which pairs that are left out have infinite r^2.

    Their weights are 0, and so are all derivatives of them, where automatic differentiation of a power
    at infinity would give NaN. Equal functions are one array.
    """
    places: list[int] = []

    def distinct(profile, r2):
        found = profile.weights(r2)
        unique = list({id(array): array for array in found}.values())
        places[:] = [next(i for i, u in enumerate(unique) if u is array) for array in found]
        return tuple(unique)

    once = jax.custom_jvp(distinct)

    @once.defjvp
    def derivative(primals, tangents):
        profile, r2 = primals
        out = jnp.isinf(r2)
        inside = (profile, jnp.where(out, 1, r2))
        found = jax.jvp(distinct, inside, tangents)
        return jax.tree.map(lambda weight: jnp.where(out, 0, weight), found)

    values = once(profile, r2)
    return tuple(values[place] for place in places)


def shape_cotangent(
    profile: Profile,
    loss: Callable[[Profile, PyTree, PyTree], Float[Array, ""]],
    targets: PyTree,
    sources: PyTree,
    sizes: tuple[int, int],
) -> PyTree:
    """The gradient of a sum over pairs in the profile's shape parameters, a tile at a time.

    Args:
        profile: without parameters nothing is computed.
        loss: of the profile, rows of targets and rows of sources.
        targets, sources: pytrees of rows.
        sizes: (targets, sources) of one tile.
    """
    if not jax.tree.leaves(profile):
        return profile

    def at(target):
        def from_sources(source):
            return jax.grad(loss)(profile, target, source)

        return map_sum(from_sources, sources, chunk_size=sizes[1], checkpoint=True)

    return map_sum(at, targets, chunk_size=sizes[0], checkpoint=True)

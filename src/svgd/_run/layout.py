"""Particle sets as pytrees: how one is laid out as a matrix of points, and turned back."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from memory import checked_floats
from svgd._checks import sum_is_finite


@dataclasses.dataclass(frozen=True)
class ParticleLayout:
    """How a pytree of particles, `n` along each leaf's leading axis, is one `(n, d)` array.

    Leaves are ravelled in C order and concatenated in the pytree's order. Hashable, so that it can
    be a static part of a state.
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def form(self) -> PyTree:
        """The pytree of a particle's shapes, to be shown."""
        return jax.tree.unflatten(self.treedef, list(self.shapes))

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each coordinate: the path of its leaf and its place in it."""
        example = jax.tree.unflatten(self.treedef, list(range(len(self.shapes))))
        names = []
        for (path, _), shape in zip(
            jax.tree_util.tree_leaves_with_path(example), self.shapes, strict=True
        ):
            key = jax.tree_util.keystr(path)
            stem = key.replace("['", "").replace("']", "") if key.count("[") == 1 else key
            stem = stem.removeprefix(".")
            places = (
                f"[{', '.join(map(str, place))}]" if place else "" for place in np.ndindex(shape)
            )
            names += [stem + place or "x" for place in places]
        return tuple(name if not name.startswith("[") else "x" + name for name in names)

    def shown(self, point: Float[Array, " d"]) -> str:
        """A point as the user's own particle, in a few words."""
        with np.printoptions(precision=4, threshold=20):
            return str(jax.tree.map(np.asarray, self.unravel_one(point)))

    def ravel(self, particles: PyTree) -> Float[Array, "n d"]:
        """The particles as one array. The pytree must have this layout."""
        leaves = self.treedef.flatten_up_to(particles)
        count = leaves[0].shape[0]
        flat = [
            jnp.reshape(leaf, (count, math.prod(shape)))
            for leaf, shape in zip(leaves, self.shapes, strict=True)
        ]
        return flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=1)

    def unravel(self, points: Float[Array, "n d"]) -> PyTree:
        """The pytree of particles, leading axis `n`."""
        return self._split(points, (points.shape[0],))

    def unravel_one(self, point: Float[Array, " d"]) -> PyTree:
        """The pytree of a single particle, without the leading axis."""
        return self._split(point, ())

    def ravel_one(self, particle: PyTree) -> Float[Array, " d"]:
        """One particle as a vector."""
        leaves = [jnp.ravel(leaf) for leaf in self.treedef.flatten_up_to(particle)]
        return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)

    def _split(self, array: Array, lead: tuple[int, ...]) -> PyTree:
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            leaves.append(jnp.reshape(array[..., start:stop], (*lead, *shape)))
            start = stop
        return self.treedef.unflatten(leaves)


def lay_out(
    particles: PyTree, name: str = "particles"
) -> tuple[ParticleLayout, Float[Array, "n d"]]:
    """The layout of a particle set and its points as an array of one floating dtype.

    Args:
        particles: one array of shape `(n, d)`, or a pytree of arrays with leading axis `n`. NumPy
            arrays are taken; integers are promoted to the default float.
        name: what errors call them.

    Raises:
        ValueError: no arrays, no particles, unequal leading axes, a bare array without a parameter
            axis, leaves of different floating dtypes, complex or non-numeric leaves, and, when the
            values are concrete, values that are not finite.
    """
    leaves, treedef = jax.tree.flatten(particles)
    if not leaves:
        raise ValueError(f"the {name} hold no array")
    bare = jax.tree_util.treedef_is_leaf(treedef)
    if not bare and all(isinstance(leaf, int | float | complex) for leaf in leaves):
        raise ValueError(
            f"the {name} are a pytree of {len(leaves)} numbers: give one array of shape (n, d), as in "
            f"numpy.asarray({name}), or a pytree of arrays with leading axis n"
        )
    for leaf in leaves:
        if callable(leaf):
            raise ValueError(
                f"the {name} hold {leaf!r}, which is no array: keep the arrays apart from the rest, as in "
                f"{name}, rest = equinox.partition({name}, equinox.is_array), and combine the two in "
                "the log-density"
            )
    leaves = [checked_floats(f"the {name}", leaf) for leaf in leaves]
    shapes = [leaf.shape for leaf in leaves]
    if bare and len(shapes[0]) < 2:
        raise ValueError(
            f"{name} given as one array need shape (n, d), got {shapes[0]}: "
            "for one parameter give shape (n, 1)"
        )
    counts = {shape[0] if shape else None for shape in shapes}
    if len(counts) != 1 or None in counts:
        raise ValueError(
            f"every leaf of the {name} needs the same leading axis, the number of particles; "
            f"got shapes {shapes}"
        )
    if counts == {0} or all(0 in shape for shape in shapes):
        raise ValueError(f"there are no {name}: the leaves have shapes {shapes}")
    dtypes = {leaf.dtype.name for leaf in leaves}
    if len(dtypes) != 1:
        raise ValueError(
            f"the leaves of the {name} have different dtypes, {sorted(dtypes)}: cast them to one"
        )
    for leaf in leaves:
        if isinstance(leaf, jax.core.Tracer) or sum_is_finite(leaf):
            continue
        bad = int(np.sum(~np.isfinite(np.asarray(leaf)).reshape(leaf.shape[0], -1).all(1)))
        if bad:
            raise ValueError(f"{bad} of {leaf.shape[0]} {name} hold NaN or infinity")
    layout = ParticleLayout(treedef, tuple(shape[1:] for shape in shapes))
    return layout, layout.ravel(treedef.unflatten(leaves))


def lay_out_alike(
    first: PyTree, second: PyTree, names: tuple[str, str]
) -> tuple[ParticleLayout, Float[Array, "n d"], Float[Array, "m d"]]:
    """Two sets of particles of one layout and dtype, as `lay_out` gives each, or a ValueError."""
    layout, rows = lay_out(first, names[0])
    other, others = lay_out(second, names[1])
    if other != layout:
        raise ValueError(
            f"the {names[1]} have the form {other.form()} without their leading axis, but the "
            f"{names[0]} {layout.form()}: give both alike"
        )
    if others.dtype != rows.dtype:
        raise ValueError(
            f"the {names[1]} are {others.dtype}, but the {names[0]} {rows.dtype}: cast one of them"
        )
    return layout, rows, others

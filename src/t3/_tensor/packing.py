"""Two storages of one tensor network, and the one loop that serves both.

A family of cores (one array per mode) is stored either

- *ragged*: a tuple of ``d`` arrays, each of its own size. Loops over modes are unrolled.
- *packed*: one array with a leading mode axis, every core zero-padded to the largest. Loops over
  modes are a ``lax.scan``, so the compiled program and its compile time do not grow with ``d``.
  Inside a computation it may be `Peeled`: the first and last modes apart.

Padding is exact zero, and stays exact zero under every linear operation of this package. Where a
bond ends (``r_0`` and ``r_d``), the network is contracted with `end_vector`: ones on the true bond,
zeros on padding. No gradient reaches padding this way.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from memory import checked_floats


class Peeled(eqx.Module):
    """A packed family whose first and last modes stand apart.

    End bonds are usually 1, but in packed cores as wide as all others: apart, the first and last
    modes take as little work as they do in ragged storage.
    """

    first: Any
    inner: Any
    last: Any

    def __getitem__(self, mode: int) -> Any:
        return {0: self.first, -1: self.last}[mode]


if TYPE_CHECKING:
    # Static checkers cannot know which of these a family is; every use would need a cast.
    Cores = Any
else:
    Cores = tuple[Array, ...] | Array | Peeled


def scalar_factor(factor: Any, dtype: Any) -> Array | np.ndarray:
    """A real number as a scalar of this dtype.

    Raises:
        ValueError: on complex numbers and arrays.
    """
    if isinstance(factor, int | float):
        # Python's integers have no largest one, NumPy's have.
        return np.asarray(float(factor)).astype(dtype)
    return checked_floats("the factor", factor, ()).astype(dtype)


def as_cores(cores: Any) -> Any:
    """Cores as JAX arrays of one floating point type (integers become the default one).

    Anything but arrays and numbers (what transformations put in place of leaves) stays as it is.

    Raises:
        ValueError: complex cores.
    """
    leaves = list(cores) if isinstance(cores, (tuple, list)) else [cores]
    if not leaves or not all(hasattr(leaf, "dtype") and hasattr(leaf, "ndim") for leaf in leaves):
        return cores
    dtype = np.result_type(*(leaf.dtype for leaf in leaves))
    if not jnp.issubdtype(dtype, jnp.inexact):
        dtype = np.dtype(float)
    check_real("cores", dtype)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    leaves = [jnp.asarray(leaf, dtype) for leaf in leaves]
    return tuple(leaves) if isinstance(cores, (tuple, list)) else leaves[0]


def check_real(what: str, dtype: Any) -> None:
    """Raises ValueError for a complex type: derivatives and inner products here are real."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError(
            f"{what} must be real, got {dtype}. Samples are linear in each of their arguments: give "
            "real and imaginary parts apart."
        )


def is_packed(cores: Any) -> bool:
    """Whether a family of cores is one stacked array (packed) and not a tuple (ragged)."""
    return not isinstance(cores, (tuple, list))


def sweep(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    cores: tuple[Any, ...],
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Walk over the modes: ``carry, out_i = step(carry, (a_i, b_i, ...))``.

    Args:
        step: one mode's work. In packed storage the carry must keep its shapes.
        carry: initial carry.
        cores: families ``(a, b, ...)``. Each is a sequence of d items (ragged) or has a leading
            mode axis on every leaf (packed); all of one kind. ``None`` entries are passed through.
        reverse: walk from the last mode to the first; ``out`` stays in mode order.

    Returns:
        The final carry, and the outs: every leaf of ``out`` becomes a tuple of d arrays (ragged)
        or gains a leading mode axis (packed).

    Raises:
        ValueError: families of both kinds, or of different lengths.

    Cost:
        d steps; the compiled program holds d steps (ragged) or one (packed).
    """
    families = [family for family in cores if family is not None]
    packed = [is_packed(family) for family in families]
    if any(isinstance(family, Peeled) for family in families):
        return _sweep_peeled(step, carry, cores, reverse)
    if any(packed):
        if not all(packed):
            raise ValueError(
                "sweep was given both ragged families (tuples of cores) and packed ones (stacked "
                "arrays). Pack or unpack so that all are of one kind."
            )
        return jax.lax.scan(step, carry, tuple(cores), reverse=reverse)
    lengths = {len(family) for family in families}
    if len(lengths) != 1:
        raise ValueError(f"sweep needs families of one length, got lengths {sorted(lengths)}.")
    (d,) = lengths
    outs: list[Any] = [None] * d
    for i in reversed(range(d)) if reverse else range(d):
        mode = tuple(None if family is None else family[i] for family in cores)
        carry, outs[i] = step(carry, mode)
    return carry, jax.tree.map(lambda *leaves: tuple(leaves), *outs)


def _sweep_peeled(step, carry, cores, reverse: bool):
    outs = {}
    order = ("first", "inner", "last")
    for part in reversed(order) if reverse else order:
        modes = tuple(None if family is None else getattr(family, part) for family in cores)
        if part == "inner":
            carry, outs[part] = jax.lax.scan(step, carry, modes, reverse=reverse)
        else:
            carry, outs[part] = step(carry, modes)
    return carry, jax.tree.map(Peeled, outs["first"], outs["inner"], outs["last"])


def peel(family: Any, left: int | None = None, right: int | None = None) -> Any:
    """A packed family with its first and last modes apart.

    Args:
        family: packed; None stays None.
        left: true size of the leading axis of the first item; None leaves it padded.
        right: true size of the trailing axis of the last item; None leaves it padded.
    """
    if family is None:
        return None
    return Peeled(family[0][:left], family[1:-1], family[-1][..., :right])


def unpeel(tree: Any) -> Any:
    """Every `Peeled` family of a tree as one packed array."""

    def join(family):
        shape = family.inner.shape[1:]
        first, last = (pad_to(item, shape)[None] for item in (family.first, family.last))
        return jnp.concatenate([first, family.inner, last])

    peeled = lambda node: isinstance(node, Peeled)  # noqa: E731
    return jax.tree.map(lambda node: join(node) if peeled(node) else node, tree, is_leaf=peeled)


def has_inner_modes(family: Any) -> bool:
    """Whether a family is packed and has modes between its first and last, so that `peel` gains."""
    return is_packed(family) and len(family) > 2


def pad_to(array: Array, shape: Sequence[int]) -> Array:
    """Zero-pad the trailing axes of `array` at their ends up to `shape`."""
    lead = array.ndim - len(shape)
    widths = [(0, 0)] * lead + [
        (0, size - have) for size, have in zip(shape, array.shape[lead:], strict=True)
    ]
    return jnp.pad(array, widths)


def stack_padded(arrays: Sequence[Array], shape: Sequence[int]) -> Array:
    """Stack ragged arrays on a leading axis, their trailing axes zero-padded to `shape`."""
    return jnp.stack([pad_to(a, shape) for a in arrays])


def split_padded(stacked: Array, shapes: Sequence[Sequence[int]]) -> tuple[Array, ...]:
    """Inverse of `stack_padded`: cut item i back to trailing sizes ``shapes[i]``."""
    return tuple(
        item[(..., *(slice(0, size) for size in shape))]
        for item, shape in zip(stacked, shapes, strict=True)
    )


def map_modes(fn: Callable[..., Any], *families: Any) -> Any:
    """Apply `fn` to every mode's cores on its own: unrolled (ragged) or ``jax.vmap`` (packed)."""
    if isinstance(families[0], Peeled):
        ends = [fn(*(getattr(f, part) for f in families)) for part in ("first", "last")]
        inner = jax.vmap(fn)(*(family.inner for family in families))
        return jax.tree.map(Peeled, ends[0], inner, ends[1])
    if is_packed(families[0]):
        return jax.vmap(fn)(*families)
    return sweep(lambda _, cores: (None, fn(*cores)), None, families)[1]


def per_mode(values: Sequence[int], like: Cores) -> Any:
    """Static numbers, one a mode, in the form that a step of `sweep` over `like` receives."""
    return jnp.asarray(np.asarray(values), jnp.int32) if is_packed(like) else tuple(values)


def set_mode(cores: Cores, mode: int, core: Array) -> Cores:
    """Replace one mode's core (zero-padded to fit when packed)."""
    if is_packed(cores):
        return cores.at[mode].set(pad_to(core, cores.shape[1:]))
    mode %= len(cores)
    return (*cores[:mode], core, *cores[mode + 1 :])


def shift_right(cores: Cores, first: Array) -> Cores:
    """Give each mode its left neighbour's item; mode 0 gets `first`."""
    if is_packed(cores):
        return jnp.concatenate([pad_to(first, cores.shape[1:])[None], cores[:-1]])
    return (first, *cores[:-1])


def flip_modes(cores: Cores) -> Cores:
    """The same cores in reversed mode order."""
    return cores[::-1]


def compact(stacked: Array, *indices: np.ndarray) -> Array:
    """Gather the trailing axes of packed cores, mode by mode: closes the gaps between blocks.

    Args:
        stacked: ``(d, ...)`` with as many further axes as there are `indices`.
        indices: for each trailing axis, ``(d, new_size)`` positions in the old axis. Positions out
            of range give zeros.
    """
    for axis, index in enumerate(indices):
        stacked = jax.vmap(
            lambda core, i, axis=axis: jnp.take(core, i, axis=axis, mode="fill", fill_value=0)
        )(stacked, jnp.asarray(index, jnp.int32))
    return stacked


def index_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Stack index lists of unequal lengths for `compact`; the fill lies out of range."""
    size = max(len(row) for row in rows)
    fill = np.iinfo(np.int32).max
    return np.stack([np.pad(row, (0, size - len(row)), constant_values=fill) for row in rows])


def concat_index(first: Sequence[int], padded_first: int, second: Sequence[int]) -> np.ndarray:
    """Positions of the true entries when two padded axes stand one after the other."""
    return index_rows(
        [np.r_[0:a, padded_first : padded_first + b] for a, b in zip(first, second, strict=True)]
    )


def kron_index(first: Sequence[int], second: Sequence[int], padded_second: int) -> np.ndarray:
    """Positions of the true entries when two padded axes are merged, the second one fastest."""
    return index_rows(
        [
            (np.arange(a)[:, None] * padded_second + np.arange(b)).ravel()
            for a, b in zip(first, second, strict=True)
        ]
    )


def end_vector(size: int, padded_size: int, dtype: Any) -> Array:
    """Vector that closes an end bond: ones on the true bond, zeros on padding."""
    return (jnp.arange(padded_size) < size).astype(dtype)

"""Random tensors, frames, tangents and probes that the sampling tests share."""

import jax
import jax.numpy as jnp
import numpy as np

import t3

# name: shape, Tucker ranks (up), down ranks, left bonds, right bonds, order, probe axes
CASES = {
    "one mode": ((4,), (2,), (3,), (1, 2), (3, 1), 3, (3,)),
    "two modes, tails": ((3, 5), (2, 3), (2, 2), (2, 2, 1), (1, 3, 2), 1, (4,)),
    "three modes, two axes": (
        (4, 2, 3),
        (2, 2, 3),
        (3, 2, 2),
        (1, 3, 2, 1),
        (1, 2, 4, 1),
        2,
        (2, 3),
    ),
    "four modes, no axis": (
        (2, 3, 4, 2),
        (2, 3, 2, 1),
        (1, 3, 2, 2),
        (1, 2, 3, 2, 2),
        (2, 3, 2, 2, 1),
        6,
        (),
    ),
    "five modes": (
        (3, 2, 4, 1, 3),
        (2, 2, 3, 1, 2),
        (2, 1, 3, 1, 3),
        (1, 2, 3, 2, 2, 1),
        (1, 3, 2, 2, 2, 1),
        4,
        (3,),
    ),
    "order zero, ranks of one": ((3, 4, 2), (1,) * 3, (1,) * 3, (1,) * 4, (1,) * 4, 0, (2,)),
}


def normal(rng, shape, dtype=np.float64):
    return jnp.asarray(rng.standard_normal(shape), dtype)


def tensor(rng, shape, tucker, tt, dtype=np.float64):
    return t3.TuckerTensorTrain(
        tuple(normal(rng, s, dtype) for s in zip(tucker, shape, strict=True)),
        tuple(normal(rng, s, dtype) for s in zip(tt[:-1], tucker, tt[1:], strict=True)),
    )


def tangent(rng, shape, up, down, left, right, dtype=np.float64):
    """A tangent at a frame that is not orthogonal, with left bonds unlike its right bonds."""

    def trio(a, n, b):
        return tuple(normal(rng, s, dtype) for s in zip(a[:-1], n, b[1:], strict=True))

    frame = t3.T3Frame(
        tuple(normal(rng, s, dtype) for s in zip(up, shape, strict=True)),
        trio(left, down, right),
        trio(left, up, left),
        trio(right, up, right),
    )
    variations = t3.T3Variations(
        tuple(normal(rng, s, dtype) for s in zip(down, shape, strict=True)),
        trio(left, up, right),
    )
    return t3.T3Tangent(frame, variations)


def vectors(rng, shape, batch, dtype=np.float64):
    return tuple(normal(rng, (*batch, n), dtype) for n in shape)


def indices(rng, shape, batch):
    return np.stack([rng.integers(0, n, batch) for n in shape])


def packed(v):
    frame = v.frame.pack()
    return t3.T3Tangent(frame, frame.pack_variations(v.variations))


def error(value, reference):
    """Largest difference over all arrays, relative to the largest reference entry."""
    value, reference = jax.tree.leaves(value), jax.tree.leaves(reference)
    assert [v.shape for v in value] == [r.shape for r in reference]
    scale = jnp.max(jnp.stack([jnp.max(jnp.abs(r)) for r in reference if r.size]))
    worst = jnp.max(
        jnp.stack(
            [jnp.max(jnp.abs(v - r)) for v, r in zip(value, reference, strict=True) if r.size]
        )
    )
    return worst / jnp.where(scale > 0, scale, 1)


def dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))

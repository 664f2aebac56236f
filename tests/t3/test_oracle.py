"""The brute-force twins, against nested derivatives of the contraction itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

# Sums of at most a few hundred products.
TOLERANCE = 1e-13


def derivatives(fn, order):
    """Derivatives 0 .. order of a function of a scalar at 0, by nesting forward mode."""
    out = [fn]
    for _ in range(order):
        out.append(jax.jacfwd(out[-1]))
    return np.stack([np.asarray(f(0.0)) for f in out])


@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 3, 4)])
def test_oracle_equals_nested_derivatives(shape, rng, relative_error):
    order, letters = 2, "abc"[: len(shape)]
    dense = jnp.asarray(rng.standard_normal(shape))
    ww, pp = ([jnp.asarray(rng.standard_normal(n)) for n in shape] for _ in range(2))

    def contracted(free, points):
        def value(s):
            vectors = [w + s * p for w, p in zip(points, pp, strict=True)]
            terms = [c for i, c in enumerate(letters) if i != free]
            operands = [v for i, v in enumerate(vectors) if i != free]
            out = "" if free is None else letters[free]
            return jnp.einsum(",".join([letters, *terms]) + "->" + out, dense, *operands)

        return value

    probes = t3.oracle.probe_derivatives(dense, ww, pp, order)
    for mode, jets in enumerate(probes):
        expected = derivatives(contracted(mode, ww), order)
        assert relative_error(jets, expected) < TOLERANCE
    expected = derivatives(contracted(None, ww), order)
    assert relative_error(t3.oracle.apply_derivatives(dense, ww, pp, order), expected) < TOLERANCE
    index = np.array([n - 1 for n in shape])
    units = [jnp.eye(n)[i] for n, i in zip(shape, index, strict=True)]
    expected = derivatives(contracted(None, units), order)
    entries = t3.oracle.entries_derivatives(dense, index, pp, order)
    assert relative_error(entries, expected) < TOLERANCE
    assert entries[0] == dense[tuple(index)]


def test_probe_axes(rng):
    shape, batch = (3, 2), (2, 4)
    dense = rng.standard_normal(shape)
    ww = [rng.standard_normal((*batch, n)) for n in shape]
    pp = [rng.standard_normal((*batch, n)) for n in shape]
    probes = t3.oracle.probe_derivatives(dense, ww, pp, 1)
    assert [p.shape for p in probes] == [(2, *batch, n) for n in shape]
    one = t3.oracle.probe_derivatives(dense, [w[1, 2] for w in ww], [p[1, 2] for p in pp], 1)
    np.testing.assert_allclose(probes[0][:, 1, 2], one[0], rtol=1e-14)

"""A sampling of one's own, written as CONTRIBUTING says: all else follows from one method."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_cases import dot, error, indices, normal, packed, tangent, tensor, vectors

import t3
from t3._sampling import walks
from t3._sampling.probes import index_probes, vector_probes
from t3._tensor.packing import sweep

# Of sums of a few hundred products, relative to the size of what is summed.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


class Totals(t3.Sampling):
    """All modes contracted with vectors, and that number times several others."""

    value_ndim: ClassVar[int] = 1

    ww: Any
    factors: tuple[float, ...] = eqx.field(static=True, default=(1.0, 2.0, -1.0))

    def value_shape(self, shape):
        return (len(self.factors),)

    def probes(self, shape, dtype):
        return vector_probes(shape, self.ww, None, 0, 1, dtype)

    def sample_chunk(self, train, count, points, directions):
        def step(before, mode):
            core, tt, point = mode
            return jnp.einsum("wa,anb,wn->wb", before, tt, point @ core.T), None

        first, end = train.ends
        start = jnp.ones_like(points[0][:, :1]) * first[None]
        after, _ = sweep(step, start, (train.tucker, train.tt, points))
        factors = jnp.asarray(self.factors, after.dtype)
        return (after @ end)[None, :, None] * factors[None, None]


class EntriesTwice(t3.Sampling):
    """Entries with the default arithmetic in place of the hand-written."""

    indexed: ClassVar[bool] = True

    index: Any
    pp: Any = None
    order: int | None = eqx.field(static=True, default=None)

    def probes(self, shape, dtype):
        count = self.count(len(shape))
        return index_probes(shape, self.index, self.pp, self.order or 0, count, dtype)

    def sample_chunk(self, train, count, points, directions):
        slots = walks.project_modes(train.tucker, points, directions)
        first, end = train.ends
        step = walks.affine_step(slots[0].shape[-2] - 1)
        start = walks.first_jet(count, first, slots[0])
        last, _ = sweep(step, start, (walks.arranged(train.tt), slots))
        return 2 * walks.derivatives(last @ end)


def dense_totals(x, ww, factors=(1.0, 2.0, -1.0)):
    values = jnp.einsum("abc,wa,wb,wc->w", x.to_dense(), *ww)
    return values[:, None] * jnp.asarray(factors, values.dtype)[None]


SHAPE, BATCH = (3, 2, 4), (5,)


def case(rng, dtype, storage):
    x = tensor(rng, SHAPE, (2, 2, 3), (2, 2, 3, 1), dtype)
    v = tangent(rng, SHAPE, (2, 2, 3), (1, 2, 2), (2, 2, 3, 1), (1, 3, 2, 2), dtype)
    ww = vectors(rng, SHAPE, BATCH, dtype)
    return (x, v, ww) if storage == "ragged" else (x.pack(), packed(v), ww)


@pytest.mark.parametrize("storage", ["ragged", "packed"])
def test_values_transposes_and_gradients_follow(storage, dtype, rng):
    x, v, ww = case(rng, dtype, storage)
    residual = normal(rng, (*BATCH, 3), dtype)

    @jax.jit
    def errors(x, v, ww):
        sampling = Totals(ww)
        jets = v.sample(sampling, chunk_size=2)
        summed = t3.sample_transpose(
            residual, sampling, v.frame, sum_over_probes=True, chunk_size=2
        )
        kept = t3.T3Tangent.sample_transpose(residual, sampling, v.frame, chunk_size=None)
        gradient = jax.grad(
            lambda x, ww: dot(residual, x.sample(Totals(ww), chunk_size=2)), (0, 1)
        )(x, ww)
        dense = jax.grad(lambda x, ww: dot(residual, dense_totals(x, ww)), (0, 1))(x, ww)
        return {
            "tensor": error(t3.sample(x, sampling, chunk_size=3), dense_totals(x, ww)),
            "tangent": error(jets, dense_totals(v, ww)),
            "adjoint": abs(dot(residual, jets) - summed.dot(v.variations))
            / jnp.sqrt(dot(residual, residual) * dot(jets, jets)),
            "kept": error(jax.tree.map(lambda a: jnp.sum(a, 0), kept), summed),
            "gradient": error(gradient, dense),
        }

    for what, value in errors(x, v, ww).items():
        assert value.dtype == dtype
        assert value < TOLERANCE[dtype.name], what


@pytest.mark.parametrize("storage", ["ragged", "packed"])
def test_defaults_equal_what_is_written_by_hand(storage, rng):
    x, v, _ = case(rng, np.float64, storage)
    index, pp = indices(rng, SHAPE, BATCH), vectors(rng, SHAPE, BATCH)
    residual = normal(rng, (3, *BATCH))

    @jax.jit
    def errors(x, v, pp):
        ours, twice = t3.Entries(index, pp, 2), EntriesTwice(index, pp, 2)
        double = lambda tree: jax.tree.map(lambda a: 2 * a, tree)  # noqa: E731
        back = lambda s: t3.sample_transpose(residual, s, v.frame)  # noqa: E731
        grad = lambda make: jax.grad(  # noqa: E731
            lambda x, pp: dot(residual, t3.sample(x, make(index, pp, 2), chunk_size=2)), (0, 1)
        )(x, pp)
        return [
            error(t3.sample(v, twice), double(t3.sample(v, ours))),
            error(back(twice), double(back(ours))),
            error(grad(EntriesTwice), double(grad(t3.Entries))),
        ]

    assert max(map(float, errors(x, v, pp))) < 1e-12


def test_on_a_mesh_and_in_a_fit(rng):
    x, v, ww = case(rng, np.float64, "ragged")
    mesh = jax.make_mesh((1,), ("probes",))
    sampling = Totals(ww)
    values = t3.sample(x, sampling)
    assert error(t3.sample(x, sampling, mesh=mesh), values) < 1e-14
    back = t3.sample_transpose(values, sampling, v.frame, mesh=mesh, sum_over_probes=True)
    assert error(back, t3.sample_transpose(values, sampling, v.frame, sum_over_probes=True)) < 1e-13
    many = Totals(vectors(rng, SHAPE, (60,)))
    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, (2, 2, 3), (1, 2, 3, 1))
    truth = t3.TuckerTensorTrain.random(jax.random.key(0), SHAPE, (2, 2, 3), (1, 2, 3, 1))
    result = t3.fit(start, many, truth.sample(many), weight=2.0, max_steps=40)
    assert result.relative_misfit < 1e-6
    assert (result.x - truth).norm() < 1e-5 * truth.norm()


def test_what_is_no_sampling_is_refused(rng):
    x, v, ww = case(rng, np.float64, "ragged")
    # By the library's own check, or by that of the annotations where tests have it switched on.
    with pytest.raises((ValueError, TypeError), match=r"[sS]ampling"):
        t3.sample(x, ww)
    with pytest.raises(ValueError, match=r"TuckerTensorTrain or a t3.T3Tangent"):
        t3.sample(x.to_dense(), Totals(ww))
    with pytest.raises(ValueError, match=r"\(4, 3\).*\(\*W, ...\) = \(5, 3\)"):
        t3.sample_transpose(jnp.ones((4, 3)), Totals(ww), v.frame)
    with pytest.raises(ValueError, match="directions pp"):
        t3.sample(x, t3.Apply(ww, ww))

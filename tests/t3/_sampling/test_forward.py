"""Probes, applies, entries and their derivatives, against the dense oracle."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_cases import CASES, error, indices, normal, packed, tangent, tensor, vectors

import t3

# Of sums of up to a few thousand products, relative to the largest value.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


@pytest.mark.parametrize("storage", ["ragged", "packed"])
@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float64") for case in CASES), ("five modes", "float32")]
)
def test_jets_equal_dense_oracle(case, dtype, storage, rng):
    shape, up, down, left, right, order, batch = CASES[case]
    x = tensor(rng, shape, up, left, dtype)
    v = tangent(rng, shape, up, down, left, right, dtype)
    ww, pp = vectors(rng, shape, batch, dtype), vectors(rng, shape, batch, dtype)
    index = indices(rng, shape, batch)

    @jax.jit
    def errors(x, v, ww, pp):
        out = {}
        for name, network in (("tensor", x), ("tangent", v)):
            dense = network.to_dense()
            stored = (
                network
                if storage == "ragged"
                else (network.pack() if name == "tensor" else packed(network))
            )
            options = {"chunk_size": 2}
            out[name, "probe"] = error(
                stored.probe_derivatives(ww, pp, order, **options),
                t3.oracle.probe_derivatives(dense, ww, pp, order),
            )
            out[name, "apply"] = error(
                stored.apply_derivatives(ww, pp, order, **options),
                t3.oracle.apply_derivatives(dense, ww, pp, order),
            )
            out[name, "entries"] = error(
                stored.entries_derivatives(index, pp, order, **options),
                t3.oracle.entries_derivatives(dense, index, pp, order),
            )
        return out

    for what, value in errors(x, v, ww, pp).items():
        assert value.dtype == dtype
        assert value < TOLERANCE[dtype], what


def test_orders_above_the_degree_are_exactly_zero(rng):
    shape = (3, 2)
    x = tensor(rng, shape, (2, 2), (1, 2, 1))
    ww, pp = vectors(rng, shape, (3,)), vectors(rng, shape, (3,))
    probes = x.probe_derivatives(ww, pp, 4)
    assert all(not np.any(p[2:]) for p in probes)
    assert not np.any(x.apply_derivatives(ww, pp, 4)[3:])


def test_order_14_in_float32(rng):
    # A tensor of rank one: along a line it is a product of 16 affine functions. 13! exceeds int32.
    d, order = 16, 14
    factors = [rng.uniform(0.5, 1.0, (1, 2)) for _ in range(d)]
    x = t3.TuckerTensorTrain.from_canonical([jnp.asarray(f, jnp.float32) for f in factors]).pack()
    ww = [rng.uniform(0.5, 1.0, (1, 2)) for _ in range(d)]
    pp = [rng.uniform(0.5, 1.0, (1, 2)) for _ in range(d)]
    stack = lambda family: jnp.asarray(np.stack(family), jnp.float32)  # noqa: E731
    probes = x.probe_derivatives(stack(ww), stack(pp), order)
    assert probes.dtype == jnp.float32 and probes.shape == (d, order + 1, 1, 2)
    polynomial = np.polynomial.Polynomial([1.0])
    for factor, w, p in zip(factors[1:], ww[1:], pp[1:], strict=True):
        polynomial *= np.polynomial.Polynomial([(w @ factor[0])[0], (p @ factor[0])[0]])
    values = np.array([math.factorial(t) * polynomial.coef[t] for t in range(order + 1)])
    np.testing.assert_allclose(probes[0, :, 0], values[:, None] * factors[0], rtol=1e-4)


def test_order_zero_is_the_plain_sample(rng):
    shape, batch = (3, 4, 2), (2,)
    x = tensor(rng, shape, (2, 3, 2), (1, 2, 2, 1))
    v = tangent(rng, shape, (2, 3, 2), (2, 2, 2), (1, 2, 2, 1), (1, 2, 2, 1))
    ww, pp, index = (
        vectors(rng, shape, batch),
        vectors(rng, shape, batch),
        indices(rng, shape, batch),
    )
    for network in (x, v):
        for plain, jets in zip(
            network.probe(ww), network.probe_derivatives(ww, pp, 0), strict=True
        ):
            np.testing.assert_array_equal(plain, jets[0])
        dense = network.to_dense()
        np.testing.assert_allclose(
            network.apply(ww), jnp.einsum("abc,wa,wb,wc->w", dense, *ww), rtol=1e-12
        )
        np.testing.assert_allclose(network.entries(index), dense[tuple(index)], rtol=1e-12)


def test_probe_counts_zero_and_one(rng):
    shape = (3, 4)
    x = tensor(rng, shape, (2, 2), (1, 2, 1))
    for batch in ((0,), (2, 0), (1,)):
        ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
        for network in (x, x.pack()):
            probes = network.probe_derivatives(ww, pp, 1)
            assert [p.shape for p in probes] == [(2, *batch, n) for n in shape]
            assert network.apply_derivatives(ww, pp, 1).shape == (2, *batch)
            index = np.zeros((2, *batch), int)
            assert network.entries_derivatives(index, pp, 1).shape == (2, *batch)


def test_stacked_inputs_give_stacked_outputs(rng):
    shape, batch = (3, 2, 4), (3,)
    x = tensor(rng, shape, (2, 2, 2), (1, 2, 2, 1))
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    fill = lambda family: jnp.stack(  # noqa: E731
        [jnp.pad(a, ((0, 0), (0, 4 - a.shape[1])), constant_values=7.0) for a in family]
    )
    expected = x.probe_derivatives(ww, pp, 2)
    for network in (x, x.pack()):
        jets = network.probe_derivatives(fill(ww), fill(pp), 2)
        assert jets.shape == (3, 3, *batch, 4)
        for i, n in enumerate(shape):
            np.testing.assert_allclose(jets[i, ..., :n], expected[i], rtol=1e-12)
            assert not np.any(jets[i, ..., n:])


def test_numpy_inputs_and_mixed_precision(rng):
    shape = (3, 2)
    x = tensor(rng, shape, (2, 2), (1, 2, 1), np.float32)
    ww = [rng.standard_normal((3, n)) for n in shape]
    integers = [np.arange(3 * n).reshape(3, n) for n in shape]
    wide = x.probe(ww)
    assert all(isinstance(p, jax.Array) and p.dtype == np.float64 for p in wide)
    narrow = x.probe([w.astype(np.float32) for w in ww])
    assert all(p.dtype == np.float32 for p in narrow)
    np.testing.assert_allclose(wide[0], narrow[0], rtol=1e-4, atol=1e-5)
    # Integers do not widen.
    assert x.apply(integers).dtype == np.float32


def test_zero_cores_give_zeros():
    x = t3.TuckerTensorTrain.zeros((3, 2), (2, 2), (1, 2, 1))
    ones = [jnp.ones((2, n)) for n in (3, 2)]

    def total(x):
        jets = x.apply_derivatives(ones, ones, 1), *x.probe_derivatives(ones, ones, 1)
        return sum(map(jnp.sum, jets))

    value, grad = jax.jit(jax.value_and_grad(total))(x)
    assert value == 0 and all(np.all(np.isfinite(g)) for g in jax.tree.leaves(grad))


def test_several_tangents_and_base_points_by_vmap(rng):
    shape, batch = (3, 2), (2,)
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    v = tangent(rng, shape, (2, 2), (2, 2), (1, 2, 1), (1, 2, 1))
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a, -a]), v.variations)
    jets = jax.vmap(lambda u: t3.T3Tangent(v.frame, u).probe_derivatives(ww, pp, 1))(many)
    one = v.probe_derivatives(ww, pp, 1)
    np.testing.assert_allclose(jets[0][1], 2 * one[0], rtol=1e-12)
    points = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), v)
    both = jax.vmap(lambda u: u.apply_derivatives(ww, pp, 1, chunk_size=1))(points)
    # Two Tucker cores, two train cores: doubling every core of a two-mode tangent gives 16 times.
    np.testing.assert_allclose(both[1], 16 * both[0], rtol=1e-12)


SHAPE = (3, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, w: x.probe(w[:1]), ["2 arrays", "got 1"]),
        (lambda x, w: x.probe([w[0], w[0]]), ["mode 1", "(5, 3)", "4"]),
        (lambda x, w: x.probe([w[0], w[1][:2]]), ["mode 0", "(5, 3)", "mode 1", "(2, 4)"]),
        (
            lambda x, w: x.probe_derivatives(w, [w[0], w[1][:2]], 1),
            ["mode 1", "(5, 4)", "(2, 4)"],
        ),
        (lambda x, w: x.probe_derivatives(w, None, 1), ["pp", "None"]),
        (lambda x, w: x.apply_derivatives(w, w, -1), ["order", "-1"]),
        (lambda x, w: x.probe(w, chunk_size=0), ["chunk_size", "0"]),
        (lambda x, w: x.entries(np.array([[0], [4]])), ["mode 1", "0 .. 3", "4"]),
        (lambda x, w: x.entries(np.array([[0], [-1]])), ["mode 1", "-1"]),
        (lambda x, w: x.entries(np.array([[0.0], [1.0]])), ["integers"]),
        (lambda x, w: x.entries(np.zeros((3, 1), int)), ["2 rows", "3"]),
        (lambda x, w: x.probe(np.zeros((2, 5, 3))), ["(d, ..., N)", "(2, 5, 3)"]),
        (lambda x, w: x.probe(None), ["2 arrays", "None"]),
        (lambda x, w: x.probe([np.asarray(a) + 1j for a in w]), ["real", "complex"]),
    ],
)
def test_errors_name_the_mode_and_the_shapes(call, words, rng):
    x = tensor(rng, SHAPE, (2, 2), (1, 2, 1))
    with pytest.raises(ValueError) as raised:
        call(x, vectors(rng, SHAPE, (5,)))
    for word in words:
        assert word in str(raised.value)


def test_traced_index_out_of_range_gives_nan(rng):
    x = tensor(rng, SHAPE, (2, 2), (1, 2, 1))
    values = jax.jit(lambda i: x.entries(i))(jnp.array([[0, 3], [1, 1]]))
    assert np.isfinite(values[0]) and np.isnan(values[1])


def loss_of(network, residual, points, pp, order, kind, **options):
    jets = getattr(network, f"{kind}_derivatives")(points, pp, order, **options)
    return sum(
        jnp.vdot(r, j)
        for r, j in zip(jax.tree.leaves(residual), jax.tree.leaves(jets), strict=True)
    )


def oracle_loss(x, residual, points, pp, order, kind):
    jets = getattr(t3.oracle, f"{kind}_derivatives")(x.to_dense(), points, pp, order)
    return sum(
        jnp.vdot(r, j)
        for r, j in zip(jax.tree.leaves(residual), jax.tree.leaves(jets), strict=True)
    )


@pytest.mark.parametrize("storage", ["ragged", "packed"])
def test_gradients_equal_those_of_the_dense_oracle(storage, rng):
    shape, batch, order = (3, 2, 4), (3,), 2
    x = tensor(rng, shape, (2, 2, 2), (2, 2, 3, 1))
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    index = indices(rng, shape, batch)
    residual = {
        "probe": tuple(normal(rng, (order + 1, *batch, n)) for n in shape),
        "apply": normal(rng, (order + 1, *batch)),
        "entries": normal(rng, (order + 1, *batch)),
    }

    @jax.jit
    def errors(x, ww, pp):
        store = (lambda x: x.pack()) if storage == "packed" else (lambda x: x)
        out = {}
        for kind in residual:
            points = index if kind == "entries" else ww
            where = (0, 2) if kind == "entries" else (0, 1, 2)
            ours = jax.grad(
                lambda x, w, p, kind=kind: loss_of(
                    store(x), residual[kind], w, p, order, kind, chunk_size=2
                ),
                where,
            )(x, points, pp)
            dense = jax.grad(
                lambda x, w, p, kind=kind: oracle_loss(x, residual[kind], w, p, order, kind), where
            )(x, points, pp)
            out[kind] = error(ours, dense)
        return out

    for kind, value in errors(x, ww, pp).items():
        assert value < 1e-12, kind


def test_gradient_of_gradient(rng):
    shape, batch = (3, 2), (3,)
    x = tensor(rng, shape, (2, 2), (1, 2, 1))
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    direction = jax.tree.map(lambda a: normal(rng, a.shape), (x, ww))

    def second(probe):
        def value(x, ww):
            return sum(jnp.sum(jnp.sin(jets)) for jets in probe(x, ww))

        def along(x, ww):
            gradient = jax.grad(value, (0, 1))(x, ww)
            return sum(
                jnp.vdot(a, b)
                for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True)
            )

        return jax.jit(jax.grad(along, (0, 1)))(x, ww)

    ours = second(lambda x, w: x.probe_derivatives(w, pp, 1, chunk_size=2))
    dense = second(lambda x, w: t3.oracle.probe_derivatives(x.to_dense(), w, pp, 1))
    assert error(ours, dense) < 1e-12


def test_forward_mode_of_a_tensor_is_refused_and_a_tangent_gives_it(rng):
    shape, batch = (3, 2), (3,)
    x = tensor(rng, shape, (2, 2), (1, 2, 1))
    change = jax.tree.map(lambda a: normal(rng, a.shape), x)
    ww = vectors(rng, shape, batch)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: x.apply(ww), (x,), (change,))
    frame = t3.T3Frame(x.tucker_cores, x.tt_cores, x.tt_cores, x.tt_cores)
    v = t3.T3Tangent(frame, t3.T3Variations(change.tucker_cores, change.tt_cores))
    _, expected = jax.jvp(lambda x: jnp.einsum("ab,wa,wb->w", x.to_dense(), *ww), (x,), (change,))
    np.testing.assert_allclose(v.apply(ww), expected, rtol=1e-12)


@pytest.mark.parametrize("storage", ["ragged", "packed"])
def test_traced_indices_that_no_mode_has_give_nan(storage, rng):
    # Mode 0 is smaller than its packed core: neither padding nor a negative place may be read.
    x = tensor(rng, SHAPE, (2, 2), (1, 2, 1))
    x = x.pack() if storage == "packed" else x
    index = jnp.array([[0, -1, 3, 1, 2], [1, 1, 1, -1, 3]])
    read = jax.jit(lambda x, index: x.entries(index))
    np.testing.assert_array_equal(np.isnan(read(x, index)), [False, True, True, True, False])
    np.testing.assert_array_equal(np.isnan(read(x, index.astype(jnp.int8))), [0, 1, 1, 1, 0])
    gradient = jax.jit(lambda x: t3.entries_transpose(jnp.ones(5), index, x, sum_over_probes=True))(
        x
    )
    # Where nothing is read, nothing is written: column 2 of mode 0 belongs to the last probe only.
    alone = t3.entries_transpose(jnp.ones(1), index[:, 4:], x, sum_over_probes=True)
    np.testing.assert_allclose(gradient.tucker[0][:, 2], alone.tucker[0][:, 2], rtol=1e-12)


def test_order_40_in_float32(rng):
    # Along a line the product of 40 values 0.05 t: derivative 40 is 40! 0.05^40 = 7.4e-5. Neither
    # 40! (8e47) nor the coefficient (9e-53) is a float32.
    d, order = 40, 40
    x = t3.TuckerTensorTrain.from_canonical([jnp.ones((1, 2), jnp.float32)] * d).pack()
    ww = jnp.zeros((d, 1, 2), jnp.float32)
    pp = jnp.full((d, 1, 2), 0.025, jnp.float32)
    jets = x.apply_derivatives(ww, pp, order)
    expected = math.factorial(40) * 0.05**40
    np.testing.assert_allclose(jets[:, 0], [0.0] * 40 + [expected], rtol=1e-4, atol=1e-12)
    # The derivative in the directions is 40 / 0.05 / 80 of it for each number; the transpose too.
    slope = jax.grad(lambda p: x.apply_derivatives(ww, p, order)[-1, 0])(pp)
    np.testing.assert_allclose(slope, jnp.full_like(pp, expected / 0.05), rtol=1e-4)
    residual = jnp.zeros((order + 1, 1), jnp.float32).at[-1].set(1.0)
    back = t3.apply_derivatives_transpose(residual, ww, pp, x, order, sum_over_probes=True)
    np.testing.assert_allclose(jnp.sum(back.tucker[3]), expected, rtol=1e-4)


def test_square_arrays_of_indices_that_fit_both_ways_are_warned_about(rng):
    x = tensor(rng, (3, 3), (2, 2), (1, 2, 1))
    index = np.array([[0, 1], [2, 2]])
    with pytest.warns(t3.AmbiguousIndexWarning, match="one row a mode"):
        values = x.entries(index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(values, x.entries(tuple(index)))
        x.entries(np.array([[0, 1], [1, 2]]))  # the same both ways
        tensor(rng, (3, 2), (2, 2), (1, 2, 1)).entries(np.array([[2, 1], [1, 0]]))  # fits one way
    with pytest.raises(ValueError, match=r"2 rows.*index\.T"):
        x.entries(np.zeros((5, 2), int))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda a: np.ma.masked_less(a, 0.0), "masked"),
        (lambda a: np.asarray(a) + 1j, "real"),
        (lambda a: np.full(a.shape, "x"), "numbers"),
        (lambda a: np.asarray(a).astype(object).tolist() + ["x"], "numbers|shape"),
    ],
)
def test_what_is_no_array_of_real_numbers_is_refused_by_name(bad, words, rng):
    x = tensor(rng, SHAPE, (2, 2), (1, 2, 1))
    ww = vectors(rng, SHAPE, (5,))
    with pytest.raises(ValueError, match=words):
        x.probe([bad(ww[0]), ww[1]])
    with pytest.raises(ValueError, match=words):
        t3.apply_transpose(bad(np.asarray(ww[0][:, 0])), ww, x)


def test_sizes_of_chunks_are_any_integers(rng):
    x = tensor(rng, SHAPE, (2, 2), (1, 2, 1))
    ww = vectors(rng, SHAPE, (5,))
    for size in (np.int64(2), np.uint8(2)):
        np.testing.assert_allclose(x.apply(ww, chunk_size=size), x.apply(ww), rtol=1e-12)
        t3.apply_transpose(jnp.ones(5), ww, x, chunk_size=size)

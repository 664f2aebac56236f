"""Construction and arithmetic of Tucker tensor trains, against dense arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memory
import t3
from t3._tensor.construct import checked_sizes

# (shape, Tucker ranks, train ranks)
CASES = {
    "one mode": ((5,), (2,), (1, 1)),
    "one mode with tails": ((5,), (2,), (2, 3)),
    "modes of size one": ((1, 4, 1), (1, 2, 1), (1, 1, 1, 1)),
    "ranks of one": ((3, 4), (1, 1), (1, 1, 1)),
    "unequal with tails": ((4, 5, 3), (2, 3, 2), (2, 2, 3, 2)),
    "slack": ((2, 3, 2), (3, 4, 2), (1, 5, 4, 1)),
}
# Sums of a few hundred products.
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def sizes(request):
    return request.param


def dense_by_loops(x):
    """Entry by entry in NumPy float64: nothing of the package but the cores."""
    cores = [
        np.einsum("anb,nN->aNb", np.asarray(g, np.float64), np.asarray(b, np.float64))
        for b, g in zip(x.tucker_cores, x.tt_cores, strict=True)
    ]
    dense = np.empty(x.shape)
    for index in np.ndindex(*x.shape):
        row = np.ones(x.tt_ranks[0])
        for core, i in zip(cores, index, strict=True):
            row = row @ core[:, i]
        dense[index] = row.sum()
    return dense


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, "float64") for case in CASES), ("unequal with tails", "float32")],
)
def test_arithmetic_equals_dense(case, dtype, key, relative_error):
    sizes, dtype = CASES[case], np.dtype(dtype)
    keys = jax.random.split(key)
    x = t3.TuckerTensorTrain.random(keys[0], *sizes, dtype=dtype)
    y = t3.TuckerTensorTrain.random(keys[1], *sizes, dtype=dtype)

    @jax.jit
    def everything(x, y):
        return {
            "x": x.to_dense(),
            "squash": x.squash().to_dense(),
            "sum": (x + y).to_dense(),
            "difference": (2 * x - y / 4).to_dense(),
            "product": (x * y).to_dense(),
            "inner": x.inner(y),
            "norm": x.norm(),
            "exp log norm": jnp.exp(x.log_norm()),
            "reverse": x.reverse().to_dense(),
            "orthogonal": x.orthogonalize().to_dense(),
        }

    a, b = dense_by_loops(x), dense_by_loops(y)
    expected = {
        "x": a,
        "squash": a,
        "sum": a + b,
        "difference": 2 * a - b / 4,
        "product": a * b,
        "inner": np.sum(a * b),
        "norm": np.linalg.norm(a),
        "exp log norm": np.linalg.norm(a),
        "reverse": a.transpose(),
        "orthogonal": a,
    }
    scale = np.linalg.norm(a) * np.linalg.norm(b)
    for pair in ((x, y), (x.pack(), y.pack())):
        values = everything(*pair)
        for name, value in values.items():
            assert value.dtype == dtype
            if name == "inner":  # may cancel: judge it by the norms
                assert abs(float(value) - expected[name]) < TOLERANCE[dtype.name] * scale
            else:
                assert relative_error(value, expected[name]) < TOLERANCE[dtype.name], name


def test_shapes_and_ranks(sizes, key):
    x = t3.TuckerTensorTrain.random(key, *sizes)
    for z in (x, x.pack()):
        assert (z.shape, z.tucker_ranks, z.tt_ranks) == sizes
        assert z.ndim == len(sizes[0])
        assert z.squash().tt_ranks == (1, *sizes[2][1:-1], 1)


def test_minimal_ranks_of_slack():
    x = t3.TuckerTensorTrain.zeros((2, 3, 2), (3, 4, 2), (1, 5, 4, 1))
    assert x.minimal_ranks == ((2, 3, 2), (1, 2, 2, 1))
    assert t3.TuckerTensorTrain.zeros((9,), (4,), (1, 1)).minimal_ranks == ((1,), (1, 1))


def test_log_norm_where_products_overflow(dtype):
    # 10^40 entries of one: the norm 1e20 fits float32, its square does not.
    x = t3.TuckerTensorTrain.from_canonical([np.ones((1, 10), dtype)] * 40).pack()
    assert abs(float(x.norm()) / 1e20 - 1) < 1e-4
    assert abs(float(x.log_norm()) - 20 * np.log(10)) < 1e-4
    # 10^80 entries: only the logarithm fits.
    x = t3.TuckerTensorTrain.from_canonical([np.ones((1, 10), dtype)] * 80).pack()
    value, slope = jax.value_and_grad(lambda z: z.log_norm())(x)
    assert abs(float(value) - 40 * np.log(10)) < 2e-4
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(slope))


def test_norm_keeps_digits_of_small_differences(key):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 6), (2, 3, 2), (1, 2, 2, 1))
    # The Gram matrix alone would leave the root of rounding, 1e-8.
    assert float((x - x).norm()) < 1e-13 * float(x.norm())


def test_gradients_of_norm_and_inner(key, relative_error):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 3, 2), (2, 2, 3, 1))

    @jax.jit
    def gradients(x):
        return (
            jax.grad(lambda z: z.norm())(x),
            jax.grad(lambda z: jnp.linalg.norm(z.to_dense().ravel()))(x),
            jax.grad(lambda z: z.inner(x))(x),
            jax.grad(lambda z: jnp.sum(z.to_dense() * x.to_dense()))(x),
        )

    for z in (x, x.pack()):
        a, b, c, d = gradients(z)
        for one, two in ((a, b), (c, d)):
            for have, want in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
                assert relative_error(have, want) < 1e-12


def test_zero_is_finite():
    sizes = CASES["unequal with tails"]
    for z in (
        t3.TuckerTensorTrain.zeros(*sizes),
        t3.TuckerTensorTrain.zeros(*sizes).pack(),
    ):
        value, slope = jax.jit(jax.value_and_grad(lambda x: x.norm()))(z)
        assert float(value) == 0
        assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(slope))
        assert float(z.log_norm()) == -np.inf


def test_from_dense_exact_and_truncated(dtype, rng, relative_error):
    a = rng.standard_normal((4, 3, 5)).astype(dtype)
    x = t3.TuckerTensorTrain.from_dense(a)
    assert x.dtype == dtype
    assert relative_error(x.to_dense(), a) < TOLERANCE[dtype.name]
    assert (x.tucker_ranks, x.tt_ranks) == ((4, 3, 5), (1, 4, 5, 1))
    y = t3.TuckerTensorTrain.from_dense(a, tolerance=0.5)
    assert relative_error(y.to_dense(), a) < 0.5
    assert sum(y.tucker_ranks) < sum(x.tucker_ranks)
    ranks = ((2, 2, 2), (1, 2, 2, 1))
    z = jax.jit(lambda a: t3.TuckerTensorTrain.from_dense(a, ranks=ranks))(a)
    assert (z.tucker_ranks, z.tt_ranks) == ranks
    with pytest.raises(ValueError, match="not both"):
        t3.TuckerTensorTrain.from_dense(a, tolerance=0.1, ranks=ranks)
    with pytest.raises(ValueError, match=r"\(4, 3, 5\) and \(1, 4, 5, 1\)"):
        t3.TuckerTensorTrain.from_dense(a, ranks=((2, 2, 2), (1, 9, 2, 1)))


def test_from_tensor_train_and_canonical(rng, relative_error):
    cores = [rng.standard_normal(s) for s in ((1, 3, 2), (2, 4, 3), (3, 5, 1))]
    x = t3.TuckerTensorTrain.from_tensor_train(cores)
    dense = np.einsum("aib,bjc,ckd->ijk", *cores)
    assert relative_error(x.to_dense(), dense) < 1e-14
    factors = [rng.standard_normal((3, n)) for n in (4, 2, 5)]
    y = t3.TuckerTensorTrain.from_canonical(factors)
    assert relative_error(y.to_dense(), np.einsum("ri,rj,rk->ijk", *factors)) < 1e-14
    assert (y.tucker_ranks, y.tt_ranks) == ((3, 3, 3), (1, 3, 3, 1))


@pytest.mark.parametrize("packed", [False, True])
def test_save_and_load(tmp_path, key, packed):
    x = t3.TuckerTensorTrain.random(key, (4, 5), (2, 3), (2, 3, 1), dtype=jnp.float32)
    x = x.pack() if packed else x
    x.save(tmp_path / "x.npz")
    y = t3.TuckerTensorTrain.load(tmp_path / "x.npz")
    assert eqx.tree_equal(x, y)


def test_inputs_are_checked(key):
    x = t3.TuckerTensorTrain.random(key, (4, 5), (2, 3), (1, 2, 1))
    with pytest.raises(ValueError, match="mode 1"):
        t3.TuckerTensorTrain(x.tucker_cores, (x.tt_cores[0], x.tt_cores[0]))
    with pytest.raises(ValueError, match=r"\(4, 5\) and \(5, 4\)"):
        x + x.reverse()
    with pytest.raises(ValueError, match="scalar"):
        x * np.ones((4, 5))
    with pytest.raises(ValueError, match="d \\+ 1"):
        t3.TuckerTensorTrain.zeros((4, 5), (2, 3), (1, 1))
    with pytest.raises(ValueError, match="at least 1"):
        t3.TuckerTensorTrain.zeros((4, 5), (2, 0), (1, 1, 1))
    with pytest.raises(ValueError, match="T3Ranks"):
        t3.TuckerTensorTrain(np.zeros((2, 3, 4)), np.zeros((2, 2, 3, 2)))
    with pytest.raises(ValueError, match=r"integers, .*2\.5"):
        checked_sizes((4, 5), (2.5, 3), (1, 2, 1))
    with pytest.raises(ValueError, match="must be real, got complex"):
        x.from_tensor_train([np.ones((1, 2, 1), complex)])
    for empty in (np.zeros((0, 3)), np.zeros(())):
        with pytest.raises(ValueError, match="entries, got an array of shape"):
            x.from_dense(empty)


def test_integers_and_mixed_precision_are_promoted(rng):
    x = t3.TuckerTensorTrain(
        (np.ones((1, 3), np.int32), rng.standard_normal((1, 2)).astype(np.float32)),
        (np.ones((1, 1, 1)), np.ones((1, 1, 1))),
    )
    assert x.tucker_cores[0].dtype == x.tucker_cores[1].dtype
    assert jnp.issubdtype(x.tucker_cores[0].dtype, jnp.floating)


def test_vmap_over_tensors(key, relative_error):
    make = lambda k: t3.TuckerTensorTrain.random(k, (3, 4), (2, 2), (1, 2, 1))  # noqa: E731
    keys = jax.random.split(key, 3)
    stack = jax.vmap(make)(keys)
    norms = jax.vmap(lambda x: (x + x).norm())(stack)
    assert relative_error(norms, [float((2 * make(k)).norm()) for k in keys]) < 1e-13


def test_second_opinion(key, relative_error):
    t3toolbox = pytest.importorskip("t3toolbox.tucker_tensor_train")
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 3, 2), (2, 2, 3, 1))
    other = t3toolbox.TuckerTensorTrain(
        tuple(map(np.asarray, x.tucker_cores)), tuple(map(np.asarray, x.tt_cores))
    )
    assert relative_error(x.to_dense(), other.to_dense()) < 1e-14
    assert relative_error((x * x + x).norm(), (other * other + other).norm()) < 1e-12
    assert x.minimal_ranks[0] == tuple(other.minimal_ranks[0])


FACTORS = {
    "a large whole number": 2**70,
    "NumPy's": np.float32(2.5),
    "a scalar array": np.asarray(2.5),
    "a boolean": True,
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FACTORS)
def test_factors(key, name, packed, relative_error):
    x = t3.TuckerTensorTrain.random(key, (4, 5), (2, 3), (1, 2, 1))
    x = x.pack() if packed else x
    factor = FACTORS[name]
    for scaled in (factor * x, x * factor):
        assert relative_error(scaled.to_dense(), float(factor) * x.to_dense()) < 1e-14
    assert relative_error((x / factor).to_dense(), x.to_dense() / float(factor)) < 1e-14


NO_FACTORS = {
    "complex": (lambda x: 1j * x, ValueError, "factor must be real"),
    "an array": (lambda x: np.array([1.0, 2.0]) * x, ValueError, "from_dense makes a tensor of it"),
    "zero": (lambda x: x / 0, ZeroDivisionError, "norm 0 has no direction"),
    "norm of zero": (lambda x: (x * 0) / (x * 0).norm(), ZeroDivisionError, "norm 0"),
    "one": (lambda x: 1 + x, TypeError, "unsupported operand"),
}


@pytest.mark.parametrize("name", NO_FACTORS)
def test_what_is_no_factor(key, name):
    call, error, message = NO_FACTORS[name]
    with pytest.raises(error, match=message):
        call(t3.TuckerTensorTrain.random(key, (4, 5), (2, 3), (1, 2, 1)))


def test_python_sums_tensors(key, relative_error):
    x, y = (
        t3.TuckerTensorTrain.random(k, (4, 5), (2, 3), (1, 2, 1)) for k in jax.random.split(key)
    )
    assert relative_error(sum([x, y]).to_dense(), x.to_dense() + y.to_dense()) < 1e-14


@pytest.mark.parametrize("cut", [0, 10, -10])
def test_a_file_that_holds_no_tensor_is_told(tmp_path, key, cut):
    x = t3.TuckerTensorTrain.random(key, (4, 5), (2, 3), (1, 2, 1), dtype=jnp.bfloat16)
    path = tmp_path / "x.npz"
    x.save(path)
    assert t3.TuckerTensorTrain.load(path).dtype == jnp.bfloat16
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(memory.FileError, match="x.npz is no file of a steintrain tensor"):
        t3.TuckerTensorTrain.load(path)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e18, 1e20, 1e30])
def test_summands_may_carry_their_size_in_different_cores(key, size, packed, compiled):
    x = t3.TuckerTensorTrain.random(key, (4, 5), (2, 3), (1, 2, 1), dtype=jnp.float32)
    a, b = x.tucker_cores
    first = t3.TuckerTensorTrain((a * np.float32(size), b), x.tt_cores)
    second = t3.TuckerTensorTrain((a, b * np.float32(size)), x.tt_cores)
    if packed:
        first, second = first.pack(), second.pack()
    # Logarithms near 70, in float32.
    expected = np.log(0.5) + np.log(size) + float(x.log_norm())
    measure = lambda a, b: (a - 1.5 * b).log_norm()  # noqa: E731
    measure = jax.jit(measure) if compiled else measure
    assert abs(float(measure(first, second)) - expected) < 1e-4

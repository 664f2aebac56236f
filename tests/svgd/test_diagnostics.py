import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels
import memory
import svgd
from svgd import _diagnostics

N, D = 41, 3
RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(N, D)) * [1, 2, 0.5] + 3
SCORES = -(POINTS - 3) + 0.1 * RNG.normal(size=(N, D))
METRIC = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.5]])


def kernel_of(name, parameter, dtype=np.float64):
    cls = {"gaussian": kernels.Gaussian, "imq": kernels.InverseMultiquadric}[name]
    value = np.asarray(parameter, dtype)
    return cls(metric=value) if value.ndim == 2 else cls(value)


KERNELS = [
    (name, parameter)
    for name in ("gaussian", "imq")
    for parameter in (0.8, [0.5, 1.0, 2.0], METRIC)
]


def stein_matrix(x, s, kernel):
    """u(x_i, x_j) from the definition, every derivative of the kernel by autodiff."""

    def k(a, b):
        return kernel(a[None], b[None])[0, 0]

    def u(a, b, sa, sb):
        mixed = jnp.trace(jax.jacfwd(jax.grad(k, 0), 1)(a, b))
        return k(a, b) * sa @ sb + sa @ jax.grad(k, 1)(a, b) + sb @ jax.grad(k, 0)(a, b) + mixed

    rows = jax.vmap(u, (None, 0, None, 0))
    return jax.jit(jax.vmap(rows, (0, None, 0, None)))(x, x, s, s)


@pytest.mark.parametrize("name, parameter", KERNELS)
def test_ksd_is_its_definition(name, parameter, dtype, relative_error, monkeypatch):
    monkeypatch.setattr(_diagnostics, "_TILE_ELEMENTS", 400)  # several tiles and a remainder
    kernel = kernel_of(name, parameter, dtype)
    matrix = np.asarray(stein_matrix(POINTS, SCORES, kernel_of(name, parameter)))
    x, s = POINTS.astype(dtype), SCORES.astype(dtype)
    tolerance = {"float32": 3e-5, "float64": 1e-12}[dtype.name]
    v = svgd.ksd_squared(x, s, kernel)
    u = svgd.ksd_squared(x, s, kernel, statistic="U")
    assert v.dtype == u.dtype == dtype
    assert relative_error(v, matrix.mean()) < tolerance
    off = (matrix.sum() - np.trace(matrix)) / (N * (N - 1))
    # The U-statistic is a difference of larger sums.
    assert abs(float(u) - off) < tolerance * matrix.mean()
    assert relative_error(svgd.ksd(x, s, kernel), np.sqrt(matrix.mean())) < tolerance


@pytest.mark.parametrize("statistic", ["V", "U"])
def test_ksd_gradients(statistic, relative_error, monkeypatch):
    monkeypatch.setattr(_diagnostics, "_TILE_ELEMENTS", 400)

    def ours(x, s, h):
        return svgd.ksd_squared(x, s, kernels.InverseMultiquadric(h), statistic=statistic)

    def dense(x, s, h):
        matrix = stein_matrix(x, s, kernels.InverseMultiquadric(h))
        if statistic == "V":
            return jnp.mean(matrix)
        return (jnp.sum(matrix) - jnp.trace(matrix)) / (N * (N - 1))

    arguments = jnp.asarray(POINTS), jnp.asarray(SCORES), jnp.asarray(0.9)
    gradients = jax.jit(jax.grad(ours, (0, 1, 2)))(*arguments)
    expected = jax.jit(jax.grad(dense, (0, 1, 2)))(*arguments)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert relative_error(gradient, reference) < 1e-11


def test_ksd_tells_the_right_distribution_from_a_wrong_one(key):
    x = jax.random.normal(key, (400, 2))
    kernel = kernels.InverseMultiquadric(1.0)
    right = svgd.ksd_squared(x, -x, kernel, statistic="U")
    wrong = svgd.ksd_squared(x, -(x - 0.5), kernel, statistic="U")
    assert abs(float(right)) < 0.02 < 0.1 < float(wrong)


@pytest.mark.parametrize("name, parameter", KERNELS)
@pytest.mark.parametrize("statistic", ["V", "U"])
def test_mmd_is_its_definition(name, parameter, statistic, dtype):
    other = RNG.normal(size=(29, D)) + 3
    kernel = kernel_of(name, parameter)
    xx, yy, xy = (
        np.asarray(kernel(jnp.asarray(a), jnp.asarray(b)))
        for a, b in ((POINTS, POINTS), (other, other), (POINTS, other))
    )
    if statistic == "V":
        expected = xx.mean() + yy.mean() - 2 * xy.mean()
    else:
        expected = (xx.sum() - N) / (N * (N - 1)) + (yy.sum() - 29) / (29 * 28) - 2 * xy.mean()
    value = svgd.mmd_squared(
        POINTS.astype(dtype),
        other.astype(dtype),
        kernel_of(name, parameter, dtype),
        statistic=statistic,
    )
    assert value.dtype == dtype
    # Absolute: three means of order 1 are subtracted.
    assert abs(float(value) - expected) < {"float32": 1e-6, "float64": 1e-14}[dtype.name]


def test_mmd_gradients(relative_error):
    other = jnp.asarray(RNG.normal(size=(29, D)))

    def ours(x, y, h):
        return svgd.mmd_squared(x, y, kernels.Gaussian(h))

    def dense(x, y, h):
        kernel = kernels.Gaussian(h)
        return kernel(x, x).mean() + kernel(y, y).mean() - 2 * kernel(x, y).mean()

    arguments = jnp.asarray(POINTS - 3), other, jnp.asarray(0.9)
    gradients = jax.jit(jax.grad(ours, (0, 1, 2)))(*arguments)
    expected = jax.jit(jax.grad(dense, (0, 1, 2)))(*arguments)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert relative_error(gradient, reference) < 1e-11


def test_memory_is_bounded():
    """The scratch, forward and backward, stays far below one (n, n) matrix."""
    n = 6000
    x = jnp.zeros((n, 2), np.float32)
    kernel = kernels.Gaussian(np.ones((), np.float32))
    value = jax.value_and_grad(lambda x: svgd.ksd_squared(x, -x, kernel))
    assert memory.compiled_memory(value, x).temp_bytes < 16e6 < n * n * 4 / 8
    value = jax.value_and_grad(lambda x: svgd.mmd_squared(x, x + 1, kernel))
    assert memory.compiled_memory(value, x).temp_bytes < 16e6


def as_pytree(rows):
    """Rows in leaves of several shapes, whose order in the tree is that of the columns."""
    return {"a": rows[:, 0], "b": (rows[:, None, 1:],)}


def test_particles_may_be_a_pytree(dtype):
    x, s, y = (rows.astype(dtype) for rows in (POINTS, SCORES, POINTS[:29] + 1))
    kernel = kernel_of("imq", [0.5, 1.0, 2.0], dtype)
    for diagnostic in (svgd.ksd, svgd.ksd_squared):
        assert diagnostic(as_pytree(x), as_pytree(s), kernel) == diagnostic(x, s, kernel)
    expected = svgd.mmd_squared(x, y, kernel)
    assert svgd.mmd_squared(as_pytree(x), as_pytree(y), kernel) == expected
    assert svgd.median_bandwidth(as_pytree(x)) == svgd.median_bandwidth(x)


def test_particles_of_a_run_go_into_diagnostics_as_they_are():
    def log_density(p):
        return -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))

    begin = {"a": 1 + POINTS[:, 0], "b": POINTS[:, 1:]}
    particles = svgd.SVGD().run(log_density, begin, 100).particles
    kernel = kernels.InverseMultiquadric(svgd.median_bandwidth(particles))
    before, after = (
        jax.jit(svgd.ksd)(p, jax.vmap(jax.grad(log_density))(p), kernel) for p in (begin, particles)
    )
    assert after < before / 5
    assert svgd.mmd_squared(particles, begin, kernel) > 0.01


GAUSSIAN = kernels.Gaussian(1.0)
BAD = {
    "scores": (lambda: svgd.ksd_squared(POINTS, SCORES[:5], GAUSSIAN), r"\(5, 3\).*\(41, 3\)"),
    "rank": (lambda: svgd.ksd_squared(POINTS[0], SCORES[0], GAUSSIAN), r"\(n, d\)"),
    "empty": (lambda: svgd.ksd_squared(POINTS[:0], SCORES[:0], GAUSSIAN), r"\(0, 3\)"),
    "dtype": (
        lambda: svgd.ksd_squared(POINTS, SCORES.astype(np.float32), GAUSSIAN),
        "float32.*float64",
    ),
    "one": (
        lambda: svgd.ksd_squared(POINTS[:1], SCORES[:1], GAUSSIAN, statistic="U"),
        "at least two",
    ),
    "mmd dimension": (lambda: svgd.mmd_squared(POINTS, POINTS[:, :2], GAUSSIAN), r"\(2,\).*\(3,\)"),
    "mmd dtype": (
        lambda: svgd.mmd_squared(POINTS, POINTS.astype(np.float32), GAUSSIAN),
        "float32.*float64",
    ),
    "nan": (lambda: svgd.ksd_squared(POINTS, SCORES * np.nan, GAUSSIAN), "41 of 41 scores"),
    "score structure": (
        lambda: svgd.ksd({"a": POINTS}, {"b": SCORES}, GAUSSIAN),
        r"scores have the form \{'b': \(3,\)\}.* particles \{'a': \(3,\)\}",
    ),
    "score shape": (
        lambda: svgd.ksd_squared({"a": POINTS}, {"a": SCORES[:, :2]}, GAUSSIAN),
        r"\{'a': \(2,\)\}.*\{'a': \(3,\)\}",
    ),
    "mmd tree and array": (
        lambda: svgd.mmd_squared({"a": POINTS}, POINTS, GAUSSIAN),
        r"second sample's points have the form \(3,\).*\{'a': \(3,\)\}",
    ),
    "mmd one": (
        lambda: svgd.mmd_squared(POINTS, POINTS[:1], GAUSSIAN, statistic="U"),
        "at least two",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()

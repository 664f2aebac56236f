"""Pair sums against plain broadcast sums and their autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import (
    Gaussian,
    InverseMultiquadric,
    RationalQuadratic,
    kernel_sum,
    stein_sum,
)
from memory import compiled_memory

KERNELS = [Gaussian, InverseMultiquadric]


def dense_stein(kernel, x, s):
    """The plain form: every pair's difference at once."""
    difference = kernel.scale((x[:, None] - x[None]).reshape(-1, x.shape[1]))
    difference = difference.reshape(*x.shape[:1], *x.shape)
    f, slope, _ = kernel.weights(jnp.sum(difference**2, -1))
    repulsion = jnp.einsum("ij,ijd->id", slope, difference)
    return jnp.einsum("ij,jd->id", f, s) + kernel.unscale_gradient(repulsion)


def draw(rng, n, d, dtype, kernel, form):
    x, s, a = (jnp.asarray(rng.normal(size=(n, d)), dtype) for _ in range(3))
    h = 0.8 * np.sqrt(d)
    k = {
        "scalar": lambda: kernel(h),
        "ard": lambda: kernel(h * np.linspace(0.8, 1.2, d)),
        "metric": lambda: kernel(metric=(np.eye(d) + 0.3 / d) / h**2),
    }[form]()
    return k, x, s, a


@pytest.mark.parametrize(
    "kernel, n, d, form, tile",
    [
        (Gaussian, 1, 2, "scalar", None),
        (InverseMultiquadric, 40, 1, "scalar", (16, 7)),
        (Gaussian, 50, 3, "metric", (50, 50)),
        (InverseMultiquadric, 50, 3, "ard", (64, 11)),
        (Gaussian, 33, 8, "scalar", (8, 32)),
        (Gaussian, 40, 9, "ard", (16, 7)),
        (InverseMultiquadric, 41, 10, "metric", None),
        # Gradients in the shape parameter too: several tiles, few and many dimensions.
        (RationalQuadratic, 40, 3, "ard", (16, 7)),
        (RationalQuadratic, 41, 10, "scalar", (16, 7)),
    ],
)
def test_value_and_gradients_equal_autodiff_of_the_dense_sum(
    kernel, n, d, form, tile, dtype, rng, relative_error, monkeypatch
):
    monkeypatch.setattr("kernels._pairwise.WIDE_BLOCK", 9)  # several blocks above 8 dimensions
    k, x, s, a = draw(rng, n, d, dtype, kernel, form)

    def both(fn):
        return jax.jit(jax.value_and_grad(lambda *args: jnp.sum(a * fn(*args)), argnums=(0, 1, 2)))(
            k, x, s
        )

    value = jax.jit(lambda *args: stein_sum(*args, tile=tile))(k, x, s)
    assert value.dtype == dtype
    # Rounding of sums of n terms; gradients cancel a digit more, that of a shape parameter two.
    tolerance = {"float32": 2e-6, "float64": 4e-15}[dtype.name]
    lost = 100 if kernel is RationalQuadratic else 30
    assert relative_error(value, dense_stein(k, x, s)) < tolerance
    ours = jax.tree.leaves(both(lambda *args: stein_sum(*args, tile=tile)))
    dense = jax.tree.leaves(both(dense_stein))
    for got, expected in zip(ours, dense, strict=True):
        if n == 1:  # the gradient of the bandwidth is zero
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        else:
            assert relative_error(got, expected) < lost * tolerance


@pytest.mark.parametrize("d", [2, 10])
@pytest.mark.parametrize("kernel", [*KERNELS, RationalQuadratic])
def test_gradient_of_gradient(kernel, d, rng, relative_error, monkeypatch):
    monkeypatch.setattr("kernels._pairwise.WIDE_BLOCK", 5)
    k, x, s, a = draw(rng, 13, d, np.float64, kernel, "scalar")

    def second(fn):
        def first(k, x, s):
            return jnp.sum(a * fn(k, x, s))

        def norm(k, x, s):
            return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(first, (0, 1, 2))(k, x, s)))

        return jax.jit(jax.grad(norm, (0, 1, 2)))(k, x, s)

    ours = second(lambda *args: stein_sum(*args, tile=(5, 4)))
    for got, expected in zip(
        jax.tree.leaves(ours), jax.tree.leaves(second(dense_stein)), strict=True
    ):
        assert relative_error(got, expected) < 1e-12


def test_forward_mode_raises(rng):
    k, x, s, _ = draw(rng, 5, 2, np.float64, Gaussian, "scalar")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: stein_sum(k, x, s), (x,), (x,))


@pytest.mark.parametrize("d", [3, 10])
def test_vmap_over_scores_and_bandwidths(d, dtype, rng, relative_error):
    _, x, s, _ = draw(rng, 12, d, dtype, Gaussian, "scalar")
    scores = jnp.stack([s, 2 * s, s**2])
    bandwidths = jnp.asarray([0.5, 1.0, 2.0], dtype)
    got = jax.jit(jax.vmap(lambda h, s: stein_sum(Gaussian(h), x, s, tile=(5, 4))))(
        bandwidths, scores
    )
    for h, s, one in zip(bandwidths, scores, got, strict=True):
        expected = dense_stein(Gaussian(h), x, s)
        assert relative_error(one, expected) < {"float32": 2e-6, "float64": 4e-15}[dtype.name]


@settings(max_examples=8)  # each compiles
@given(n=st.integers(1, 40), targets=st.integers(1, 45), sources=st.integers(1, 45))
def test_tiles_do_not_matter(n, targets, sources):
    x = jnp.asarray(np.random.default_rng(n).normal(size=(n, 2)))
    whole = dense_stein(Gaussian(1.5), x, -x)
    tiled = stein_sum(Gaussian(1.5), x, -x, tile=(targets, sources))
    np.testing.assert_allclose(tiled, whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "kernel, d", [(Gaussian, 2), (InverseMultiquadric, 10), (RationalQuadratic, 2)]
)
def test_kernel_sum(kernel, d, dtype, rng, relative_error):
    k, x, _, _ = draw(rng, 23, d, dtype, kernel, "scalar")
    q = jnp.asarray(rng.normal(size=(23, 11)), dtype)
    y = jnp.asarray(rng.normal(size=(7, d)), dtype)
    tolerance = {"float32": 3e-6, "float64": 1e-14}[dtype.name]

    def gradients(fn):
        return jax.grad(lambda *args: jnp.sum(jnp.sin(fn(*args))), (0, 1, 2))

    def own(k, x, q):
        return kernel_sum(k, x, q, tile=(8, 5))

    assert relative_error(own(k, x, q), k(x, x) @ q) < tolerance

    def across(k, x, q):
        return kernel_sum(k, x, q, targets=y, tile=(3, 5))

    assert relative_error(across(k, x, q), k(y, x) @ q) < tolerance
    for ours, dense in [
        (own, lambda k, x, q: k(x, x) @ q),
        (across, lambda k, x, q: k(y, x) @ q),
    ]:
        got, expected = (jax.tree.leaves(jax.jit(gradients(fn))(k, x, q)) for fn in (ours, dense))
        for one, reference in zip(got, expected, strict=True):
            assert relative_error(one, reference) < 30 * tolerance


def float64_reference(k, x, s):
    k64 = type(k)(np.asarray(k.bandwidth, np.float64))
    return dense_stein(k64, jnp.asarray(x, jnp.float64), jnp.asarray(s, jnp.float64))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("d", [1, 2, 3, 10, 100])
def test_two_far_clusters_keep_their_digits(kernel, d, rng, relative_error, monkeypatch):
    """10^4 bandwidths apart, in any order: each cluster as accurate as on its own."""
    monkeypatch.setattr("kernels._pairwise.WIDE_BLOCK", 16)
    h = np.float32(np.sqrt(d))
    x = rng.normal(size=(60, d)).astype(np.float32)
    x[::2] += 1e4 * h / np.sqrt(d)
    s = rng.normal(size=(60, d)).astype(np.float32)
    k = kernel(h)
    got = stein_sum(k, x, s, tile=(16, 16))
    expected = float64_reference(k, x, s)
    # The repulsion alone, where an expanded product would leave 1e4 eps.
    still = np.zeros_like(s)
    repulsion = stein_sum(k, x, still, tile=(16, 16))
    assert relative_error(got, expected) < 2e-6
    assert relative_error(repulsion, float64_reference(k, x, still)) < 4e-6

    # The gradient, which takes pairs of blocks and a block with itself each in its own way, to the
    # rounding of the repulsion.
    a = rng.normal(size=(60, d)).astype(np.float32)
    ours = jax.grad(lambda x, s: jnp.sum(a * stein_sum(k, x, s, tile=(16, 16))), (0, 1))(x, s)
    dense = jax.grad(
        lambda x, s: jnp.sum(a.astype(np.float64) * float64_reference(k, x, s)), (0, 1)
    )(x, s)
    for one, reference in zip(ours, dense, strict=True):
        assert relative_error(one, reference) < 4e-6


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_common_shift_does_not_matter(kernel):
    """The grid {0, .25, .5, 1}^2 shifted by 10^6 is exact in float32, and so is the update."""
    axis = np.array([0, 0.25, 0.5, 1], np.float32)
    x = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    shifted = x + np.float32(1e6)
    assert np.array_equal(shifted - np.float32(1e6), x)
    gradient = jax.grad(lambda x, s: jnp.sum(stein_sum(kernel(0.5), x, s) ** 2), (0, 1))
    np.testing.assert_array_equal(
        stein_sum(kernel(0.5), shifted, -x), stein_sum(kernel(0.5), x, -x)
    )
    for far, near in zip(gradient(shifted, -x), gradient(x, -x), strict=True):
        np.testing.assert_array_equal(far, near)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 100])
def test_a_lonely_particle_feels_no_noise(d, rng):
    """A bandwidth of 10^-4 of the domain: no neighbours, so the update is its own score."""
    corners = rng.permutation(400).astype(np.float32)[:, None] / 400
    x = np.concatenate([corners, rng.uniform(size=(400, d - 1)).astype(np.float32)], 1)
    s = rng.normal(size=x.shape).astype(np.float32)
    got = stein_sum(Gaussian(np.float32(1e-4)), x, s)
    # Neighbours are at least 25 bandwidths away: exp(-312) is zero in float32.
    np.testing.assert_allclose(got, s, rtol=3e-7)


@pytest.mark.parametrize(
    "kernel, d", [(Gaussian, d) for d in (1, 2, 3, 10, 100)] + [(InverseMultiquadric, 3)]
)
def test_coincident_particles(kernel, d, dtype, rng, relative_error):
    x = np.repeat(rng.normal(size=(3, d)), 4, axis=0).astype(dtype)
    value, gradient = jax.jit(
        jax.value_and_grad(lambda x: jnp.sum(stein_sum(kernel(1.0), x, -x) ** 2))
    )(x)
    dense_value, dense_gradient = jax.value_and_grad(
        lambda x: jnp.sum(dense_stein(kernel(1.0), x, -x) ** 2)
    )(jnp.asarray(x))
    # The gradient of a sum of squares cancels about two digits.
    tolerance = {"float32": 1e-4, "float64": 1e-12}[dtype.name]
    assert relative_error(value, dense_value) < tolerance
    assert relative_error(gradient, dense_gradient) < tolerance


def test_float32_against_float64_in_100_dimensions(rng, relative_error):
    """One bandwidth at which every pair counts, one at which hardly any does."""
    x = rng.normal(size=(256, 100)).astype(np.float32)

    @jax.jit
    def everything(k, x):
        def loss(k, x):
            return jnp.sum(stein_sum(k, x, -x) ** 2)

        return stein_sum(k, x, -x), *jax.grad(loss, (0, 1))(k, x)

    for h in (1.0, 10.0):
        got = everything(Gaussian(np.float32(h)), x)
        expected = everything(Gaussian(np.float64(h)), x.astype(np.float64))
        for one, reference in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            if np.linalg.norm(reference) > 1e-30:  # at h = 1 the bandwidth has no pull left
                assert relative_error(one, reference) < 1e-4


def test_scratch_is_a_few_tiles():
    """n = 100,000, d = 3, float32: at most 64 MiB forward and backward, read from XLA."""
    x = jax.ShapeDtypeStruct((100_000, 3), jnp.float32)
    k = Gaussian(np.float32(0.5))
    forward = compiled_memory(lambda x, s: stein_sum(k, x, s), x, x)
    both = jax.value_and_grad(lambda k, x, s: jnp.sum(stein_sum(k, x, s) ** 2), (0, 1, 2))
    backward = compiled_memory(both, k, x, x)
    assert forward.temp_bytes <= 64 * 2**20
    assert backward.temp_bytes <= 64 * 2**20


@pytest.mark.parametrize(
    "x, q, message",
    [
        (np.ones((0, 2)), np.ones((0, 2)), "n >= 1"),
        (np.ones(3), np.ones(3), r"\(n, d\)"),
        (np.ones((3, 2)), np.ones((4, 2)), "3 particles"),
        (np.ones((3, 2)), np.ones((3, 2), np.float32), "float32 but the particles float64"),
    ],
)
def test_bad_shapes_are_refused(x, q, message):
    with pytest.raises(ValueError, match=message):
        kernel_sum(Gaussian(1.0), x, q)


@pytest.mark.parametrize(
    "tile, message", [((0, 4), r"tile\[0\] must be an integer"), ((4, -1), r"tile\[1\] must be")]
)
def test_a_tile_must_be_two_positive_sizes(tile, message):
    x = jnp.ones((3, 2))
    with pytest.raises(ValueError, match=message):
        stein_sum(Gaussian(1.0), x, x, tile=tile)


@pytest.mark.parametrize("d, h", [(3, 0.05), (100, 3.0)])
def test_bandwidth_gradient_of_particles_that_hardly_see_each_other(d, h, rng, relative_error):
    """A particle's own score takes no part in it, however much larger than the sum over the others."""
    x = jnp.asarray(1.2 * rng.normal(size=(64, d)), jnp.float32)
    a = jnp.asarray(rng.normal(size=(64, d)), jnp.float32)

    def slope(fn, dtype):
        k, *args = jax.tree.map(lambda v: v.astype(dtype), (Gaussian(np.float32(h)), x, -x, a))
        loss = lambda k: jnp.sum(args[2] * fn(k, *args[:2]))  # noqa: E731
        return jax.jit(jax.grad(loss))(k).log_bandwidth

    # float32 leaves eps r^2 / h^2, about 1e-5 here, of each weight; own terms left 5e-3.
    assert relative_error(slope(stein_sum, "float32"), slope(dense_stein, "float64")) < 3e-5

"""A kernel of many scales against the sum that it stands for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels
import svgd
from kernels import Gaussian, InverseMultiquadric, Multiscale, RationalQuadratic, stein_sum


@pytest.mark.parametrize("base", [Gaussian, InverseMultiquadric])
def test_it_is_the_weighted_sum_of_kernels_of_halving_bandwidths(base, dtype, rng, relative_error):
    x = jnp.asarray(rng.normal(size=(30, 3)), dtype)
    kernel = Multiscale(base(0.6), bottom=-1, top=2, power=1.5)
    widths = [2.0**k for k in (-1, 0, 1, 2)]
    shares = np.array(widths) ** 1.5 / np.sum(np.array(widths) ** 1.5)
    expected = sum(
        share * base(0.6 * width)(np.asarray(x, np.float64), np.asarray(x, np.float64))
        for share, width in zip(shares, widths, strict=True)
    )
    # Of the narrowest, 4^3 roundings of the widest.
    tolerance = {"float32": 1e-5, "float64": 2e-14}[dtype.name]
    assert relative_error(kernel(x, x), expected) < tolerance
    np.testing.assert_allclose(
        stein_sum(kernel, x, -x),
        sum(
            share * stein_sum(base(0.6 * width), x, -x)
            for share, width in zip(shares.tolist(), widths, strict=True)
        ),
        rtol=20 * tolerance,
        atol=20 * tolerance,
    )


def test_shape_parameters_of_its_profile_are_trained(rng, relative_error):
    x = jnp.asarray(rng.normal(size=(20, 2)))

    def loss(kernel, total):
        return jnp.sum(jnp.sin(total(kernel)))

    def dense(kernel):
        return sum(
            share * kernels.kernel_sum(RationalQuadratic(width * h, kernel.base.alpha), x, -x)
            for share, width in zip([1 / 3, 2 / 3], [1.0, 2.0], strict=True)
        )

    h = 0.7
    kernel = Multiscale(RationalQuadratic(h, 0.8), bottom=0, top=1, power=1.0)
    ours = jax.grad(loss)(kernel, lambda kernel: kernels.kernel_sum(kernel, x, -x))
    plain = jax.grad(loss)(kernel, dense)
    assert relative_error(ours.base.log_alpha, plain.base.log_alpha) < 1e-12


@pytest.mark.parametrize("form", [{"bandwidth": 0.4}, {"metric": [[6.0, 1.0], [1.0, 4.0]]}])
def test_over_cells(form, rng, relative_error):
    form = {name: np.asarray(value) for name, value in form.items()}
    x = jnp.asarray(rng.normal(size=(3000, 2)))
    tree = svgd.SteinUpdate(Multiscale(**form), method="tree", tolerance=1e-4)
    exact = svgd.SteinUpdate(Multiscale(**form), method="exact")
    partition = tree.partition(x)
    assert partition.sums == "cells"
    a = jnp.asarray(rng.normal(size=x.shape))

    def loss(update, partition):
        return jnp.sum(a * update(x, -x, partition))

    assert relative_error(tree(x, -x, partition), exact(x, -x)) < 1e-3
    ours, full = (
        jax.tree.leaves(jax.grad(loss)(update, given))
        for update, given in ((tree, partition), (exact, None))
    )
    for one, other in zip(ours, full, strict=True):
        assert relative_error(one, other) < 1e-2


@pytest.mark.parametrize(
    "arguments",
    [
        {"bandwidth": 1.0, "bottom": 1, "top": 0},
        {"bandwidth": 1.0, "power": np.inf},
        {"bandwidth": Gaussian(1.0), "metric": np.eye(2)},
    ],
)
def test_bad_scales_are_refused(arguments):
    with pytest.raises(ValueError, match="Multiscale"):
        Multiscale(**arguments)

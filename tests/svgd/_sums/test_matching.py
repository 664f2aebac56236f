"""A partition given with other particles or to another update is refused; slow moves are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partition_cases import WAYS, built, exact

import svgd
from kernels import Gaussian, InverseMultiquadric

# What is given with the partition instead of x, and what the error says.
OTHERS = {
    "fewer": (lambda x, rng: x[:-1], "of 3000 particles in 2 dimensions, but 2999 in 2"),
    "flat": (lambda x, rng: x[:, :1], "in 2 dimensions, but 3000 in 1"),
    "shuffled": (lambda x, rng: rng.permutation(x), "in another order"),
    "reversed": (lambda x, rng: x[::-1], "in another order"),
    "drawn again": (lambda x, rng: rng.normal(size=x.shape), "from other particles"),
    "wider": (lambda x, rng: 4 * rng.normal(size=x.shape), "from other particles"),
    "narrower": (lambda x, rng: 0.1 * rng.normal(size=x.shape), "from other particles"),
}


@pytest.mark.parametrize("way", ["cells", "pairs", "theta"])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kernel", [Gaussian(0.3), Gaussian([1.0, 0.5])], ids=["h", "ARD"])
def test_a_partition_of_other_particles_is_refused(name, way, kernel, rng, dtype):
    x = rng.normal(size=(3000, 2)).astype(dtype)
    other, message = OTHERS[name]
    other = other(x, rng).astype(dtype)
    update, partition = built(x, way, kernel)
    with pytest.raises(ValueError, match=message):
        update(other, -other, partition)
    # Traced particles cannot be compared, but their number can.
    if other.shape == x.shape:
        jax.eval_shape(lambda y: update(y, -y, partition), other)
    else:
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda y: update(y, -y, partition), other)


@pytest.mark.parametrize("way", ["cells", "pairs", "theta"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": Gaussian(0.75)}, "another bandwidth"),
        ({"kernel": Gaussian(1 / 3)}, "another bandwidth"),
        ({"kernel": Gaussian([0.5, 0.75])}, "another bandwidth"),
        ({"kernel": Gaussian(metric=np.array([[4.0, 3.0], [3.0, 4.0]]))}, "another bandwidth"),
        ({"kernel": InverseMultiquadric(0.5)}, "built for Gaussian.*has InverseMultiquadric"),
        ({"method": "exact"}, 'method "exact", but the partition "tree"'),
    ],
)
def test_a_partition_of_another_update_is_refused(way, change, message, rng):
    x = rng.normal(size=(3000, 2))
    _, partition = built(x, way)
    options = {"kernel": Gaussian(0.5), "method": "tree"}
    options |= WAYS[way] if "method" not in change else {}
    with pytest.raises(ValueError, match=message):
        svgd.SteinUpdate(**options | change)(x, -x, partition)


def test_a_partition_of_another_accuracy_is_refused_even_when_traced(rng):
    x = rng.normal(size=(1200, 2))
    coarse, _ = built(x, "cells", tolerance=1e-2)
    _, partition = built(x, "cells")
    with pytest.raises(ValueError, match=r"at tolerance 0.001, but .* at tolerance 0.01"):
        jax.eval_shape(lambda y: coarse(y, -y, partition), x)
    _, partition = built(x, "theta")
    with pytest.raises(ValueError, match=r"at theta 0.5, but .* at tolerance 0.01"):
        jax.eval_shape(lambda y: coarse(y, -y, partition), x)
    # Exact sums are right whatever the particles.
    exactly, partition = built(x, "exact")
    exactly(-x, x, partition)
    svgd.SteinUpdate(Gaussian(2.0), tolerance=1e-2)(x, -x, partition)


SLOW = {
    "unmoved": (lambda x, rng: x, 1.0),
    "a step of finite differences": (lambda x, rng: x + 1e-4, 1 + 1e-4),
    "noise": (lambda x, rng: x + 0.1 * rng.normal(size=x.shape), 1.0),
    "a common move": (lambda x, rng: x + 0.2, 1.0),
    "closing in": (lambda x, rng: np.median(x, 0) + 0.9 * (x - np.median(x, 0)), 1.0),
    "spreading": (lambda x, rng: np.median(x, 0) + 1.1 * (x - np.median(x, 0)), 1.0),
    "a bandwidth being learned": (lambda x, rng: x, 1.2),
}


@pytest.mark.parametrize("way", ["cells", "pairs", "theta"])
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize(
    "shape", ["normal", "crowd", "clusters", "outlier", "line", "equal", "one"]
)
def test_slow_particles_keep_their_partition(name, way, shape, rng):
    x = rng.normal(size=(1500, 2))
    if shape == "clusters":
        x = 0.3 * x + 6 * rng.normal(size=(5, 2))[rng.integers(0, 5, 1500)]
    elif shape == "outlier":
        x[7] = 1e6
    elif shape == "line":
        x[:, 1] = 2 * x[:, 0]
    elif shape in ("crowd", "equal"):
        x = 3 + (1e-2 if shape == "crowd" else 0) * x
    elif shape == "one":
        x = x[:1]
    move, rescaled = SLOW[name]
    _, partition = built(x, way, Gaussian(0.8))
    update, _ = built(x, way, Gaussian(0.8 * rescaled))
    y = move(x, rng)
    assert np.all(np.isfinite(update(y, -y, partition)))


@pytest.mark.parametrize("n", [1, 300])
def test_equal_particles_have_room_to_move_in_their_cell(n, rng, relative_error):
    x = np.full((n, 2), 3.0)
    update, partition = built(x, "cells", Gaussian(0.8))
    y = x + 0.1 * rng.uniform(-1, 1, x.shape)
    assert relative_error(update(y, -y, partition), exact(update.kernel, y, -y)) < 2e-3


def test_a_check_inside_a_trace_sees_concrete_particles(rng):
    x = rng.normal(size=(1500, 2))
    update, partition = built(x, "cells")
    x, turned = jnp.asarray(x), jnp.asarray(x[::-1])
    scores = jnp.stack([-x, -2 * x])
    jax.jit(jax.vmap(lambda s: update(x, s, partition)))(scores)
    with pytest.raises(ValueError, match="another order"):
        jax.jit(lambda s: update(turned, s, partition))(-x)

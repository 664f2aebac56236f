import jax
import jax.numpy as jnp
import numpy as np
import pytest
from normal_start import standard_normal, start

import svgd
from svgd._run import whitening as _whitening
from svgd._run.layout import lay_out
from svgd._run.target import as_target


def ill_conditioned(d=4, condition=1e6):
    """A covariance with variances from 1 to 1/condition along random directions."""
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))
    return q * np.geomspace(1, 1 / condition, d) @ q.T


COVARIANCE = ill_conditioned()
TARGET = svgd.targets.gaussian(np.ones(4), COVARIANCE)
BEGIN = np.random.default_rng(1).normal(size=(300, 4))


def errors(particles):
    """Largest error of a mean and of a standard deviation, in posterior standard deviations."""
    z = np.linalg.solve(np.linalg.cholesky(COVARIANCE), (np.asarray(particles) - 1).T)
    deviations = np.sqrt(np.linalg.eigvalsh(np.cov(z)))
    return np.abs(z.mean(axis=1)).max(), np.abs(deviations - 1).max()


@pytest.mark.parametrize("whiten", ["auto", "laplace", "particles"])
def test_condition_number_1e6(whiten):
    state = svgd.SVGD().run(TARGET.log_density, BEGIN, 500, whiten=whiten)
    mean, deviation = errors(state.particles)
    # 300 particles lose about 1 % of a standard deviation.
    assert mean < 0.02 and deviation < 0.03


def test_a_score_alone_will_do():
    state = svgd.SVGD().run(TARGET.score, BEGIN, 500)
    assert state.whitening.kind == "particles"
    assert max(errors(state.particles)) < 0.03


def test_the_unwhitened_run_fails():
    state = svgd.SVGD().run(TARGET.log_density, BEGIN, 500, whiten=None)
    assert max(errors(state.particles)) > 1


@pytest.mark.parametrize("factor", [np.linalg.cholesky(COVARIANCE), "rotated", "diagonal"])
def test_a_given_factor(factor):
    covariance = COVARIANCE
    if isinstance(factor, str) and factor == "rotated":
        # Any L with L L^T the covariance will do, not only a triangular one.
        values, vectors = np.linalg.eigh(covariance)
        factor = vectors * np.sqrt(values)
    if isinstance(factor, str):
        covariance = np.diag([1.0, 1e-2, 1e-4, 1e-6])
        factor = np.sqrt(np.diag(covariance))
    target = svgd.targets.gaussian(np.zeros(4), covariance)
    full = np.diag(factor) if factor.ndim == 1 else factor
    begin = (2 + BEGIN) @ full.T
    state = svgd.SVGD().run(target.log_density, begin, 300, whiten=factor)
    z = np.linalg.solve(full, np.asarray(state.particles).T)
    assert np.abs(z.mean(axis=1)).max() < 0.02 and np.abs(z.std(axis=1) - 1).max() < 0.02


@pytest.mark.parametrize("distance", [5.0, 20.0, 1000.0])
def test_particles_far_away_arrive(distance):
    begin = distance + 0.1 * BEGIN[:, :1]
    state = svgd.SVGD().run(lambda x: -x, begin, 500, whiten="particles")
    assert abs(float(state.particles.mean())) < 0.02
    assert abs(float(state.particles.std()) - 1) < 0.02


def test_laplace_finds_the_mode_and_the_inverse_hessian(dtype, relative_error):
    factor = np.array([[0.1, 0, 0], [3.0, 0.01, 0], [0, 0.5, 100]], dtype)
    mean = np.array([30, -7, 2], dtype)
    distribution = svgd.targets.gaussian(mean, factor @ factor.T)
    layout, points = lay_out(BEGIN[:, :3].astype(dtype))
    target = as_target(distribution.log_density, layout, points, None, False)
    found = _whitening.from_mode(target, points)
    # The covariance has condition 1e10, so that float32 keeps a few digits of it.
    tolerance = {"float32": 3e-2, "float64": 1e-6}[dtype.name]
    assert relative_error(found.factor[:2], np.linalg.cholesky(factor @ factor.T)[:2]) < tolerance
    shift = np.linalg.solve(factor.astype(np.float64), np.asarray(found.center, float) - mean)
    assert np.abs(shift).max() < {"float32": 3e-2, "float64": 1e-4}[dtype.name]
    assert found.center.dtype == dtype and found.factor.dtype == dtype


def test_particles_near_the_mode_are_not_moved():
    state = svgd.SVGD().init(lambda x: -0.5 * jnp.sum(x**2), 3 + BEGIN)
    assert not state.whitening.moved
    assert np.allclose(state.particles, 3 + BEGIN)


def test_without_a_mode_auto_takes_the_particles_and_laplace_says_why():
    def improper(x):
        return jnp.sum(x)

    assert svgd.SVGD().init(improper, BEGIN).whitening.kind == "particles"
    with pytest.raises(ValueError, match="not negative definite"):
        svgd.SVGD().init(improper, BEGIN, whiten="laplace")
    with pytest.raises(ValueError, match="needs a log-density"):
        svgd.SVGD().init(TARGET.score, BEGIN, whiten="laplace")
    with pytest.raises(ValueError, match="stochastic"):
        svgd.SVGD().init(
            lambda x, key: -jnp.sum(x**2), BEGIN, whiten="laplace", key=jax.random.key(0)
        )


def test_both_modes_of_a_mixture_keep_their_shape():
    mixture = svgd.targets.gaussian_mixture(
        np.ones(2), np.array([[-4.0, 0.0], [4.0, 0.0]]), np.stack([np.eye(2)] * 2)
    )
    particles = np.asarray(svgd.SVGD().run(mixture.log_density, 3 * BEGIN[:, :2]).particles)
    right = particles[particles[:, 0] > 0]
    # SVGD does not carry mass between separated modes: the shares are those of the start.
    assert 0.4 < len(right) / len(particles) < 0.6
    assert np.allclose(right.mean(axis=0), [4, 0], atol=0.05)
    assert np.allclose(right.std(axis=0), 1, atol=0.05)


@pytest.mark.parametrize("case", ["line", "equal", "few"])
def test_degenerate_particles_whiten_to_finite_numbers(case, dtype):
    points = {
        "line": BEGIN[:, :1] * np.array([1.0, 2.0, -1e-3]),
        "equal": np.full((50, 3), 7.0),
        "few": BEGIN[:5, :3],
    }[case].astype(dtype)
    whitening = _whitening.from_particles(jnp.asarray(points))
    z = np.asarray(whitening.whiten(jnp.asarray(points)))
    assert np.all(np.isfinite(z)) and np.abs(z).max() < 1e4
    back = np.asarray(whitening.unwhiten(jnp.asarray(z)))
    assert np.allclose(back, points, rtol=1e-3, atol=1e-3)
    assert whitening.factor.ndim == (1 if case == "few" else 2)


def test_whitening_again_leaves_the_particles_where_they_are(relative_error):
    points = jnp.asarray(BEGIN @ np.linalg.cholesky(COVARIANCE).T + 5)
    whitening = _whitening.from_particles(jnp.asarray(BEGIN))
    z = whitening.whiten(points)
    for expected_foreign in (True, False):
        whitening, z, foreign = _whitening.rewhiten(whitening, z)
        assert relative_error(whitening.unwhiten(z), points) < 1e-10
        if not expected_foreign:
            break
    whitening, z, foreign = _whitening.rewhiten(whitening, z)
    assert not bool(foreign)
    assert np.allclose(np.cov(np.asarray(z).T, bias=True), np.eye(4), atol=1e-6)


BAD = {
    "whiten name": (lambda: svgd.SVGD().run(standard_normal, start(), whiten="pca"), "pca"),
    "whiten shape": (
        lambda: svgd.SVGD().run(standard_normal, start(), whiten=np.eye(3)),
        r"\(3, 3\).*\(2, 2\)",
    ),
    "whiten singular": (
        lambda: svgd.SVGD().run(standard_normal, start(), whiten=np.diag([1.0, 0.0])),
        "singular",
    ),
    "whiten nan": (
        lambda: svgd.SVGD().run(standard_normal, start(), whiten=np.array([1, np.nan])),
        "not finite",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()

"""Verdicts on particles whose errors are known, and the numbers that they rest on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import svgd
from svgd._diagnose.drift import _limit

COUNT = 400


def normal(point):
    return -0.5 * jnp.sum(point**2)


def standard(dtype, d=2):
    """Draws whose means and standard deviations are those of N(0, I)."""
    x = np.random.default_rng(0).standard_normal((COUNT, d))
    return ((x - x.mean(0)) / x.std(0)).astype(dtype)


def test_particles_with_the_moments_of_the_posterior_are_fine(dtype):
    found = svgd.diagnose(normal, standard(dtype))
    assert found.verdict is svgd.Verdict.FINE and found.reasons == ()
    assert "verdict: fine" in str(found) and "x[1]" in str(found)
    assert found.modes is not None and len(found.modes.log_masses) == 1
    np.testing.assert_allclose(found.modes.points, 0, atol=1e-2)


@pytest.mark.parametrize(
    ("scale", "shift"), [(0.8, 0.0), (1.3, 0.0), (1.0, 0.3)], ids=["narrow", "wide", "off"]
)
def test_wrong_moments_are_told_with_their_errors(scale, shift):
    found = svgd.diagnose(normal, scale * standard("float64") + shift)
    assert found.verdict is svgd.Verdict.WRONG
    assert svgd.Reason.MOMENTS in found.reasons
    drift = found.drift
    assert drift is not None
    # Four standard errors, as the diagnosis states them.
    np.testing.assert_array_less(
        np.abs(drift.deviation_error - (scale - 1)), 4 * drift.deviation_uncertainty
    )
    np.testing.assert_array_less(np.abs(drift.mean_error - shift), 4 * drift.mean_uncertainty)


def test_particles_far_out_are_told_though_most_are_right():
    x = standard("float64")
    x[:4] += 30.0
    assert svgd.diagnose(normal, x).verdict is svgd.Verdict.WRONG


def apart(point):
    """N(-8, 1) and N(8, 1) with weights 0.2 and 0.8."""
    sides = jnp.stack([point[0] + 8, point[0] - 8])
    logs = jnp.log(jnp.asarray([0.2, 0.8], point.dtype)) - 0.5 * sides**2
    return jax.nn.logsumexp(logs) - 0.5 * jnp.sum(point[1:] ** 2)


def test_a_mode_that_holds_no_particle_is_found_with_its_mass():
    found = svgd.diagnose(apart, standard("float64") - np.array([8.0, 0.0]))
    assert found.verdict is not svgd.Verdict.FINE
    assert svgd.Reason.LOST in found.reasons
    modes = found.modes
    assert modes is not None
    np.testing.assert_allclose(modes.points[:, 0], [8, -8], atol=1e-2)
    np.testing.assert_allclose(modes.log_masses, [0, np.log(0.2 / 0.8)], atol=1e-2)
    np.testing.assert_allclose(modes.lost, 0.8, atol=1e-2)


def test_groups_that_moves_do_not_join_are_no_fine_answer():
    x = standard("float64")
    x[:, 0] += np.where(np.arange(COUNT) % 2 == 0, 8.0, -8.0)  # half and half, not 0.8 and 0.2
    found = svgd.diagnose(apart, x)
    assert found.verdict is svgd.Verdict.UNSURE
    assert svgd.Reason.GROUPS in found.reasons


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "unsure"), (0.5, "wrong")])
def test_a_score_alone_is_never_fine(scale, verdict):
    found = svgd.diagnose(lambda p: -p, scale * standard("float64"), kind="score")
    assert found.verdict.value == verdict
    assert found.drift is None and found.modes is None
    assert found.identities is not None
    np.testing.assert_allclose(found.identities.matrix, 1 - scale**2, atol=0.05)
    assert "Stein's identities" in str(found)


def test_a_particle_outside_of_the_support_is_wrong():
    def half(point):
        return jnp.where(point[0] > -100, normal(point), -jnp.inf)

    x = standard("float64")
    x[3] = -200
    found = svgd.diagnose(half, x)
    assert found.verdict is svgd.Verdict.WRONG
    assert found.reasons == (svgd.Reason.FINITE,)


def test_a_state_of_a_stochastic_run_is_refused():
    def noisy(point, key):
        return normal(point) + jax.random.normal(key, dtype=point.dtype)

    state = svgd.SVGD().run(noisy, standard("float64"), 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match="needs a deterministic log-density"):
        svgd.diagnose(noisy, state)


@pytest.mark.parametrize("name", ["mean_tolerance", "deviation_tolerance"])
def test_a_tolerance_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        svgd.diagnose(normal, standard("float64"), **{name: 0.0})


def test_the_limit_of_a_slow_drift_is_extended_from_what_is_remembered():
    rng = np.random.default_rng(1)
    start = 3 + rng.standard_normal((20_000, 1))
    after = 0.8 * start + 0.2 * rng.standard_normal((20_000, 1))  # on its way to 0
    limit, error, slope = _limit(start, after)
    np.testing.assert_allclose(slope, 0.8, atol=0.01)
    assert abs(limit[0]) < 4 * error[0] < 0.2

import numpy as np
from example_scripts import load


def test_the_example_passes_its_own_check_and_draws(tmp_path, capsys):
    figure = tmp_path / "figures" / "oring.png"
    assert load("oring").main(["--particles", "500", "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "intercept 15.04, slope -0.232" in out and "within 5 % of quadrature" in out
    assert figure.stat().st_size > 20_000


def test_the_check_fails_on_wrong_particles():
    oring = load("oring")
    exact = oring.Quadrature()
    draws = np.random.default_rng(0).choice(exact.weights.size, 20_000, p=exact.weights.ravel())
    right = np.stack([exact.intercept.ravel()[draws], exact.slope.ravel()[draws]], axis=1)
    assert oring.report(right, exact)
    assert not oring.report(right.mean(0) + 1.1 * (right - right.mean(0)), exact)
    assert not oring.report(right + 0.1 * right.std(0), exact)

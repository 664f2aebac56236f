import numpy as np
from example_scripts import load


def test_the_example_passes_its_own_check_and_draws(tmp_path, capsys):
    figure = tmp_path / "figures" / "banana.png"
    assert load("banana").main(["--smoke", "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "2,000 particles" in out and "within 10 % of the target" in out
    assert figure.stat().st_size > 20_000


def test_the_check_fails_on_wrong_particles():
    banana = load("banana")
    rng = np.random.default_rng(0)
    x = banana.WIDTH * rng.normal(size=50_000)
    y = banana.BEND * (x**2 - banana.WIDTH**2) + banana.NOISE * rng.normal(size=x.shape)
    right = np.stack([x, y], axis=1)
    assert banana.report("draws", right)
    assert not banana.report("shifted", right + 0.3)
    assert not banana.report("stretched", 1.15 * right)

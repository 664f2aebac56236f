"""Warnings point at the user's own line."""

import inspect
import warnings

import numpy as np
import pytest

import kernels
import memory
import svgd


def test_in_ones_own_code_it_is_the_line_itself():
    with pytest.warns(UserWarning, match="^here$") as caught:
        memory.warn_caller("here", UserWarning)
    assert caught[0].filename == __file__


WARNS = {
    "method of a module": lambda: svgd.SteinUpdate(
        kernels.Gaussian(1.0), method="tree", leaf_size=8
    ).partition(np.random.default_rng(0).normal(size=(4000, 2))),
    "a call of a module": lambda: svgd.SteinUpdate(
        kernels.Gaussian(1.0), method="tree", leaf_size=8
    )(*np.random.default_rng(0).normal(size=(2, 4000, 2))),
}


@pytest.mark.parametrize("name", WARNS)
def test_a_warning_points_at_the_line_of_the_user(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        WARNS[name]()
    (warning,) = [w for w in caught if issubclass(w.category, svgd.UnusedParameterWarning)]
    assert warning.filename == __file__
    first = inspect.getsourcelines(WARNS[name])[1]
    assert first <= warning.lineno <= first + 4

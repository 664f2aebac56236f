"""Growing ranks: enlarging a tensor, and stopping where held-out data say so."""

import jax
import numpy as np
import pytest

import t3


@pytest.mark.parametrize("packed", [False, True])
def test_enlarging_changes_little_and_opens_directions(packed, key):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 2, 2), (1, 2, 2, 1))
    x = x.pack() if packed else x
    y = t3.enlarge(x, ((3, 3, 3), (1, 3, 9, 1)), key, size=1e-3)
    assert y.is_packed == packed
    # The last bond cannot exceed the last Tucker rank.
    assert (y.tucker_ranks, y.tt_ranks) == ((3, 3, 3), (1, 3, 3, 1))
    change = float((y - x).norm() / x.norm())
    assert 0 < change < 1e-2
    tucker, train = y.singular_values()
    assert all(float(s[-1]) > 1e-12 * float(s[0]) for s in (*tucker, *train))


def split_entries(shape, count):
    """All entries in random order, the first `count` of them to fit and the others held out."""
    index = np.stack([axis.ravel() for axis in np.indices(shape)])
    index = index[:, np.random.default_rng(0).permutation(index.shape[1])]
    return index[:, :count], index[:, count:]


def grow(shape, train, held, values, **options):
    """Ranks grown from one; `values` gives the measured entries."""
    return t3.fit_growing_ranks(
        t3.TuckerTensorTrain.zeros(shape, (1,) * 3, (1,) * 4),
        t3.Entries(train),
        values(train),
        validation=(t3.Entries(held), values(held)),
        **options,
    )


def test_finds_the_ranks_of_exact_data(key):
    shape = (5, 6, 4)
    truth = t3.TuckerTensorTrain.random(key, shape, (2, 2, 2), (1, 2, 2, 1))
    found = grow(
        shape,
        *split_entries(shape, 90),
        truth.entries,
        max_ranks=((2, 2, 2), (1, 2, 2, 1)),
        gradient_tolerance=1e-10,
        patience=20,
    )
    assert found.reason == "largest ranks reached"
    assert [stage.x.tucker_ranks for stage in found.stages] == [(1, 1, 1), (2, 2, 2)]
    assert found.errors[1] < 1e-6 < found.errors[0]
    assert float((found.x - truth).norm() / truth.norm()) < 1e-6


def test_stops_when_validation_stops_falling(key):
    # Data of rank one and noise: more ranks only fit the noise.
    shape = (6, 6, 6)
    truth = t3.TuckerTensorTrain.random(key, shape, (1, 1, 1), (1, 1, 1, 1)).to_dense()
    noisy = truth + 0.3 * truth.std() * np.random.default_rng(1).standard_normal(shape)
    found = grow(shape, *split_entries(shape, 110), lambda i: noisy[tuple(i)], max_steps=15)
    assert found.reason == "validation error stopped falling"
    best = int(np.argmin(found.errors))
    assert found.x.tucker_ranks == found.stages[best].x.tucker_ranks
    # The last stage did not lower the error by the one percent that is asked for.
    assert found.errors[-1] > 0.99 * min(found.errors[:-1])
    assert len(found.stages) < 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_stages": 0}, "max_stages must be an integer from 1 on, got 0"),
        ({"growth": -1}, "growth"),
        ({"max_ranks": ((2, 2), (1, 1))}, "max_ranks needs .* 3 and 4 integers"),
    ],
)
def test_inputs_are_checked(options, words, key):
    shape = (3, 4, 5)
    x = t3.TuckerTensorTrain.random(key, shape, (1,) * 3, (1,) * 4)
    index = np.zeros((3, 2), int)
    sample = (t3.Entries(index), x.entries(index))
    with pytest.raises(ValueError, match=words):
        t3.fit_growing_ranks(x, *sample, **{"validation": sample, **options})
    with pytest.raises(ValueError, match="enlarge needs"):
        t3.enlarge(x, ((2, 2), (1, 2, 2, 1)), key)


@pytest.fixture(scope="module")
def growth():
    """A call whose growth takes three stages, and its outcome."""
    shape = (5, 6, 4)
    truth = t3.TuckerTensorTrain.random(jax.random.key(0), shape, (3, 3, 3), (1, 3, 3, 1))
    train, held = split_entries(shape, 100)
    call = (t3.Entries(train), truth.entries(train))
    options = {"validation": (t3.Entries(held), truth.entries(held)), "max_steps": 4}
    return call, options, t3.fit_growing_ranks(*call, **options, max_stages=3)


def test_a_callback_ends_the_growth(growth):
    call, options, _ = growth
    seen = []

    def stop(record, x):
        seen.append(x.tucker_ranks)
        return len(seen) == 3

    found = t3.fit_growing_ranks(*call, **options, callback=stop)
    assert found.reason == "stopped by the callback"
    assert len(seen) == 3 and len(found.stages) == 1


def test_an_interrupt_ends_the_growth(growth):
    call, options, _ = growth

    def interrupt(record, x):
        if record.step == 1:
            raise KeyboardInterrupt

    found = t3.fit_growing_ranks(*call, **options, callback=interrupt)
    assert found.reason is t3.StopReason.INTERRUPTED and len(found.stages) == 1
    assert found.errors[0] < np.inf and np.isfinite(found.x.to_dense()).all()


def test_growth_goes_on_from_its_checkpoint(growth, tmp_path):
    call, options, whole = growth
    file = tmp_path / "growth.npz"

    def stop(record, x):
        return record.step == 2 and max(x.tucker_ranks) > 1

    part = t3.fit_growing_ranks(*call, **options, callback=stop, checkpoint=file)
    assert part.reason == "stopped by the callback" and len(part.stages) == 2
    back = t3.Continuation.load(file)
    assert (back.reason, back.errors) == (part.reason, part.errors)
    rest = t3.fit_growing_ranks(*call, **options, max_stages=3, resume=back)
    assert rest.errors == pytest.approx(whole.errors, rel=1e-6)
    np.testing.assert_allclose(rest.x.to_dense(), whole.x.to_dense(), atol=1e-9)
    with pytest.raises(ValueError, match="differs in its data"):
        t3.fit_growing_ranks(call[0], 2 * call[1], **options, resume=back)

"""Transposes: adjoint identity, t3toolbox as a second opinion, chunks, memory read from XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_cases import CASES, dot, error, indices, normal, packed, tangent, tensor, vectors

import memory
import t3

KINDS = ("probe", "apply", "entries")
# Of sums of up to a few thousand products, relative to the size of what is summed.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def residuals(rng, shape, batch, order, dtype=np.float64):
    return {
        "probe": tuple(normal(rng, (order + 1, *batch, n), dtype) for n in shape),
        "apply": normal(rng, (order + 1, *batch), dtype),
        "entries": normal(rng, (order + 1, *batch), dtype),
    }


def transpose(kind, *args, **options):
    return getattr(t3, f"{kind}_derivatives_transpose")(*args, **options)


@pytest.mark.parametrize("storage", ["ragged", "packed"])
@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float64") for case in CASES), ("five modes", "float32")]
)
def test_adjoint_identity(case, dtype, storage, rng):
    shape, up, down, left, right, order, batch = CASES[case]
    v = tangent(rng, shape, up, down, left, right, dtype)
    v = packed(v) if storage == "packed" else v
    ww, pp = vectors(rng, shape, batch, dtype), vectors(rng, shape, batch, dtype)
    index = indices(rng, shape, batch)
    residual = residuals(rng, shape, batch, order, dtype)

    @jax.jit
    def check(v, residual, ww, pp):
        out = {}
        for kind in KINDS:
            points = index if kind == "entries" else ww
            jets = getattr(v, f"{kind}_derivatives")(points, pp, order, chunk_size=None)
            args = residual[kind], points, pp, v.frame, order
            summed = transpose(kind, *args, sum_over_probes=True, chunk_size=2)
            kept = transpose(kind, *args, chunk_size=None)
            out[kind] = (
                abs(dot(residual[kind], jets) - dot(summed, v.variations))
                / jnp.sqrt(dot(residual[kind], residual[kind]) * dot(jets, jets)),
                error(jax.tree.map(lambda a: jnp.sum(a, tuple(range(len(batch)))), kept), summed),
            )
        return out

    for kind, (identity, kept) in check(v, residual, ww, pp).items():
        assert identity.dtype == dtype
        assert identity < TOLERANCE[dtype], kind
        assert kept < TOLERANCE[dtype], kind


@pytest.mark.parametrize(
    ("shape", "up", "bonds", "order", "batch"),
    [
        ((5, 4, 6), (3, 2, 4), (1, 3, 2, 1), 3, (7,)),
        ((3, 4, 2, 3), (2, 3, 2, 2), (2, 3, 4, 2, 1), 2, (2, 3)),
    ],
)
def test_equals_t3toolbox(shape, up, bonds, order, batch, rng):
    peer = pytest.importorskip("t3toolbox.backend.sampling_derivatives")
    v = tangent(rng, shape, up, up, bonds, bonds)
    f = v.frame
    families = (f.up_tucker, f.down_tt, f.left_tt, f.right_tt)
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    index = indices(rng, shape, batch)
    residual = residuals(rng, shape, batch, order)
    points = {"probe": ww, "apply": ww, "entries": index}

    @jax.jit
    def ours(frame, residual, ww, pp):
        return {
            (kind, summed): transpose(
                kind,
                residual[kind],
                index if kind == "entries" else ww,
                pp,
                frame,
                order,
                sum_over_probes=summed,
                chunk_size=4,
            )
            for kind in KINDS
            for summed in (True, False)
        }

    for (kind, summed), mine in ours(f, residual, ww, pp).items():
        inputs = jax.tree.map(np.asarray, (residual[kind], points[kind], pp, families))
        theirs = getattr(peer, f"tv_{kind}_derivatives_transpose")(
            *inputs, order, sum_over_probes=summed
        )
        theirs = jax.tree.map(jnp.asarray, theirs)
        assert error((mine.tucker, mine.tt), theirs) < 1e-10, (kind, summed)


@pytest.mark.parametrize("storage", ["ragged", "packed"])
def test_no_chunk_size_changes_the_result(storage, rng):
    shape, count, order = (3, 2), 105, 1
    v = tangent(rng, shape, (2, 2), (2, 1), (1, 2, 1), (1, 2, 1))
    v = packed(v) if storage == "packed" else v
    ww, pp = vectors(rng, shape, (count,)), vectors(rng, shape, (count,))
    residual = residuals(rng, shape, (count,), order)["probe"]

    @jax.jit
    def all_sizes(v, residual, ww, pp):
        run = lambda size, summed: t3.probe_derivatives_transpose(  # noqa: E731
            residual, ww, pp, v.frame, order, sum_over_probes=summed, chunk_size=size
        )
        sizes = (None, 1, 7, 100, count - 1, count, count + 1, "auto")
        split = lambda a, axis: a.reshape(*a.shape[:axis], 15, 7, *a.shape[axis + 1 :])  # noqa: E731
        two_axes = t3.probe_derivatives_transpose(
            [split(r, 1) for r in residual],
            [split(w, 0) for w in ww],
            [split(p, 0) for p in pp],
            v.frame,
            order,
            chunk_size=8,
        )
        merged = jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), two_axes)
        return {
            "two axes": error(merged, run(None, False)),
            **{
                f"{s}, {summed}": error(run(s, summed), run(None, summed))
                for s in sizes
                for summed in (False, True)
            },
        }

    for what, value in all_sizes(v, residual, ww, pp).items():
        assert value < 1e-13, what


def test_transposes_of_a_tensor_are_gradients_in_its_cores(rng):
    shape, batch, order = (3, 2, 4), (3,), 2
    x = tensor(rng, shape, (2, 2, 2), (2, 2, 3, 1))
    ww, pp, index = (
        vectors(rng, shape, batch),
        vectors(rng, shape, batch),
        indices(rng, shape, batch),
    )
    residual = residuals(rng, shape, batch, order)

    def of_kind(x, kind):
        points = index if kind == "entries" else ww
        jets = getattr(t3.oracle, f"{kind}_derivatives")

        def value(x):
            return dot(residual[kind], jets(x.to_dense(), points, pp, order))

        gradient = jax.grad(value)(x)
        method = getattr(x, f"{kind}_corewise_derivatives_transpose")
        ours = method(residual[kind], points, pp, order, sum_over_probes=True)
        return error((ours.tucker, ours.tt), (gradient.tucker_cores, gradient.tt_cores))

    @jax.jit
    def errors(x):
        return {kind: of_kind(x, kind) for kind in KINDS}

    for kind, value in errors(x).items():
        assert value < 1e-12, kind


def test_plain_transposes_and_methods(rng):
    shape, batch = (3, 4), (3,)
    v = tangent(rng, shape, (2, 2), (2, 2), (1, 2, 1), (1, 2, 1))
    x = tensor(rng, shape, (2, 2), (1, 2, 1))
    ww, index = vectors(rng, shape, batch), indices(rng, shape, batch)

    def value(x, kind, points, residual):
        return dot(residual, getattr(x, kind)(points))

    for kind in KINDS:
        points = index if kind == "entries" else ww
        jets = getattr(v, kind)(points)
        residual = jax.tree.map(lambda a: normal(rng, a.shape), jets)
        back = getattr(t3.T3Tangent, f"{kind}_transpose")(
            residual, points, v.frame, sum_over_probes=True
        )
        assert isinstance(back, t3.T3Tangent)
        np.testing.assert_allclose(
            dot(residual, jets), back.variations.dot(v.variations), rtol=1e-11
        )
        kept = getattr(t3.T3Tangent, f"{kind}_derivatives_transpose")(
            jax.tree.map(lambda a: a[None], residual), points, None, v.frame, 0
        )
        assert isinstance(kept, t3.T3Variations)
        assert error(jax.tree.map(lambda a: jnp.sum(a, 0), kept), back.variations) < 1e-12
        cores = getattr(x, f"{kind}_corewise_transpose")(residual, points, sum_over_probes=True)
        dense = jax.grad(value)(x, kind, points, residual)
        assert error((cores.tucker, cores.tt), (dense.tucker_cores, dense.tt_cores)) < 1e-12


@pytest.mark.parametrize("batch", [(0,), (1,), (2, 0)])
def test_few_probes(batch, rng):
    shape, order = (3, 4), 1
    v = tangent(rng, shape, (2, 2), (2, 2), (1, 2, 1), (1, 2, 1))
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    residual = residuals(rng, shape, batch, order)["probe"]
    for u in (v, packed(v)):
        summed = t3.probe_derivatives_transpose(
            residual, ww, pp, u.frame, order, sum_over_probes=True
        )
        kept = t3.probe_derivatives_transpose(residual, ww, pp, u.frame, order)
        for s, k, like in zip(*map(jax.tree.leaves, (summed, kept, u.variations)), strict=True):
            assert s.shape == like.shape and k.shape == (*batch, *like.shape)
            np.testing.assert_allclose(s, k.reshape(-1, *like.shape).sum(0), rtol=1e-12, atol=1e-12)


def test_numpy_inputs_and_mixed_precision(rng):
    shape, batch = (3, 2), (3,)
    frame = tangent(rng, shape, (2, 2), (2, 2), (1, 2, 1), (1, 2, 1), np.float32).frame
    ww = [rng.standard_normal((*batch, n)) for n in shape]
    residual = [rng.standard_normal((2, *batch, n)) for n in shape]
    wide = t3.probe_derivatives_transpose(residual, ww, ww, frame, 1)
    residual, ww = ([a.astype(np.float32) for a in family] for family in (residual, ww))
    narrow = t3.probe_derivatives_transpose(residual, ww, ww, frame, 1)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {np.dtype("float64")}
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow)} == {np.dtype("float32")}
    assert error(jax.tree.map(lambda a: a.astype(np.float64), narrow), wide) < 1e-5


def test_orders_above_the_degree_do_not_matter(rng):
    shape, batch = (3, 2), (2,)
    v = tangent(rng, shape, (2, 2), (2, 2), (1, 2, 1), (1, 2, 1))
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    residual = residuals(rng, shape, batch, 4)["probe"]
    high = t3.probe_derivatives_transpose(residual, ww, pp, v.frame, 4)
    low = t3.probe_derivatives_transpose([r[:2] for r in residual], ww, pp, v.frame, 1)
    assert error(high, low) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r[:1], ["2 arrays", "got 1"]),
        (lambda r: [r[0][:1], r[1]], ["mode 0", "(1, 5, 3)", "(2, 5, 3)"]),
        (lambda r: [r[0], r[1][:, :4]], ["mode 1", "(2, 4, 4)", "(2, 5, 4)"]),
        (lambda r: [r[1], r[0]], ["mode 0", "(2, 5, 4)", "3"]),
    ],
)
def test_errors_name_the_mode_and_the_shapes(change, words, rng):
    shape, batch = (3, 4), (5,)
    v = tangent(rng, shape, (2, 2), (2, 2), (1, 2, 1), (1, 2, 1))
    ww, pp = vectors(rng, shape, batch), vectors(rng, shape, batch)
    residual = change(list(residuals(rng, shape, batch, 1)["probe"]))
    with pytest.raises(ValueError) as raised:
        t3.probe_derivatives_transpose(residual, ww, pp, v.frame, 1)
    for word in words:
        assert word in str(raised.value)
    with pytest.raises(ValueError, match=r"\(3, 5\).*\(2, 5\)"):
        t3.apply_derivatives_transpose(jnp.ones((3, 5)), ww, pp, v.frame, 1)


def abstract_problem(d, n, r, order, count, mode, dtype=np.float32):
    """Shapes of a frame and of probe data: nothing is allocated."""
    bonds = [1, *[r] * (d - 1), 1]
    array = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)  # noqa: E731
    trains = tuple(array(bonds[i], n, bonds[i + 1]) for i in range(d))
    frame = jax.eval_shape(
        lambda u, o, p, q: t3.T3Frame(u, o, p, q),
        tuple(array(n, mode) for _ in range(d)),
        trains,
        trains,
        trains,
    )
    residual = tuple(array(order + 1, count, mode) for _ in range(d))
    points = tuple(array(count, mode) for _ in range(d))
    return residual, points, points, frame


def scratch(problem, order, chunk_size):
    def run(residual, ww, pp, frame):
        return t3.probe_derivatives_transpose(
            residual, ww, pp, frame, order, sum_over_probes=True, chunk_size=chunk_size
        )

    return memory.compiled_memory(run, *problem).temp_bytes


def test_scratch_is_linear_in_the_chunk_and_flat_in_the_probes():
    order = 2
    problem = lambda count: abstract_problem(4, 16, 16, order, count, 30)  # noqa: E731
    small, middle, large = (scratch(problem(1024), order, size) for size in (32, 64, 128))
    assert (large - middle) / (middle - small) == pytest.approx(2, rel=0.2)
    # Four times the probes at the same chunk.
    assert scratch(problem(4096), order, 64) == pytest.approx(middle, rel=0.2)


def test_large_ranks_fit_in_two_gigabytes():
    # The dense assembly of these sizes takes over 100 GB. Compiled, not run.
    order = 5
    problem = abstract_problem(6, 128, 128, order, 32_000, 128)
    assert scratch(problem, order, "auto") < 2e9


def test_gradient_needs_the_memory_of_one_chunk(rng):
    # Against autodiff through the whole forward pass of all probes, which is the same jets.
    shape, count, order = (24,) * 4, 512, 2
    x = tensor(rng, shape, (12,) * 4, (1, 12, 12, 12, 1), np.float32)
    ww, pp = vectors(rng, shape, (count,), np.float32), vectors(rng, shape, (count,), np.float32)

    def ours(x):
        jets = x.probe_derivatives(ww, pp, order, chunk_size=16)
        return sum(jnp.sum(j**2) for j in jets)

    def plain(x):
        jets = t3.Probe(None).sample_chunk(x.train, order + 1, ww, pp)
        return sum(jnp.sum(j**2) for j in jets)

    one, two = (jax.jit(jax.value_and_grad(f)) for f in (ours, plain))
    for a, b in zip(*map(jax.tree.leaves, (one(x), two(x))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.max(jnp.abs(b))))
    ours_bytes, plain_bytes = (memory.compiled_memory(f, x).temp_bytes for f in (one, two))
    outputs = sum(4 * (order + 1) * count * n for n in shape)
    assert ours_bytes - outputs < plain_bytes / 5

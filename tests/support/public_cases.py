"""Every public function with small arguments, called with arrays of every kind: run as a program.

The test that runs it has all annotations checked, which users have not; so this is a process of its own.
It prints a line of JSON: for each finding the function, the kind of array and what happened.
"""

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import kernels
import memory
import svgd
import t3

jax.config.update("jax_enable_x64", True)


@dataclass
class Case:
    """A function of some arrays.

    Attributes:
        call: with the arrays by name; everything else is fixed.
        arrays: in float64, of whole numbers, so that they are the same in every dtype.
        noisy: how many times the rounding of the dtype a result may be off.
    """

    call: Callable[..., Any]
    arrays: dict[str, np.ndarray]
    noisy: float = 100.0


def whole(*shape, seed=0, low=-2, high=3):
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float64)


X, S, Y, V = whole(6, 2), whole(6, 2, seed=1), whole(5, 2, seed=2), whole(6, 3, seed=3)
H = np.array(2.0)
METRIC = np.array([[2.0, 1.0], [1.0, 3.0]])
B = [whole(2, 3, seed=4), whole(2, 4, seed=5), whole(2, 3, seed=6)]
G = [whole(1, 2, 2, seed=7), whole(2, 2, 2, seed=8), whole(2, 2, 1, seed=9)]
DENSE = whole(3, 4, 3, seed=10)
W = [whole(5, 3, seed=11), whole(5, 4, seed=12), whole(5, 3, seed=13)]
P = [whole(5, 3, seed=14), whole(5, 4, seed=15), whole(5, 3, seed=16)]
INDEX = np.array([[0, 1, 2], [3, 0, 1], [2, 2, 0]])
KEY = jax.random.key(0)


def tensor(b0, b1, b2, g0, g1, g2):
    return t3.TuckerTensorTrain((b0, b1, b2), (g0, g1, g2))


def cores(**more):
    return {f"b{i}": b for i, b in enumerate(B)} | {f"g{i}": g for i, g in enumerate(G)} | more


def of_tensor(fn, **more):
    return Case(lambda **a: fn(tensor(**{k: a.pop(k) for k in list(cores())}), **a), cores(**more))


FIXED = tensor(*[jnp.asarray(a) for a in (*B, *G)])
FRAME = t3.T3Frame.from_tensor(FIXED) if hasattr(t3.T3Frame, "from_tensor") else None


def vectors(prefix, arrays):
    return {f"{prefix}{i}": a for i, a in enumerate(arrays)}


def gathered(prefix, arguments):
    return [arguments[name] for name in sorted(arguments) if name.startswith(prefix)]


def _vectors_case(fn):
    return Case(lambda **a: fn(gathered("w", a)), vectors("w", W))


KERNELS = {
    "Gaussian": kernels.Gaussian,
    "InverseMultiquadric": kernels.InverseMultiquadric,
    "Multiscale": kernels.Multiscale,
    "RationalQuadratic": kernels.RationalQuadratic,
}

CASES: dict[str, dict[str, Case]] = {
    **{
        f"kernels.{name}": {
            "points": Case(lambda x, y, make=make: make(2.0)(x, y), {"x": X, "y": Y}),
            "bandwidth": Case(lambda h, make=make: make(h)(X, Y), {"h": H}),
            "metric": Case(lambda m, make=make: make(metric=m)(X, Y), {"m": METRIC}),
            "scale": Case(lambda x, make=make: make(2.0).scale(x), {"x": X}),
            "unscale": Case(lambda x, make=make: make(2.0).unscale_gradient(x), {"x": X}),
            "scale_gradient": Case(lambda x, make=make: make(2.0).scale_gradient(x), {"x": X}),
        }
        for name, make in KERNELS.items()
    },
    "kernels.kernel_sum": {
        "charges": Case(
            lambda x, v: kernels.kernel_sum(kernels.Gaussian(2.0), x, v), {"x": X, "v": V}
        ),
        "targets": Case(
            lambda x, v, y: kernels.kernel_sum(kernels.Gaussian(2.0), x, v, targets=y),
            {"x": X, "v": V, "y": Y},
        ),
    },
    "kernels.stein_sum": {
        "": Case(lambda x, s: kernels.stein_sum(kernels.Gaussian(2.0), x, s), {"x": X, "s": S})
    },
    "svgd.SteinUpdate": {
        method: Case(
            lambda x, s, method=method: svgd.SteinUpdate(kernels.Gaussian(2.0), method=method)(
                x, s
            ),
            {"x": X, "s": S},
            noisy=1e4 if method == "exact" else 1e6,
        )
        for method in ("exact", "tree")
    },
    "svgd.ksd": {"": Case(lambda x, s: svgd.ksd(x, s, kernels.Gaussian(2.0)), {"x": X, "s": S})},
    "svgd.ksd_squared": {
        "": Case(lambda x, s: svgd.ksd_squared(x, s, kernels.Gaussian(2.0)), {"x": X, "s": S})
    },
    "svgd.mmd_squared": {
        "": Case(lambda x, y: svgd.mmd_squared(x, y, kernels.Gaussian(2.0)), {"x": X, "y": Y})
    },
    "svgd.median_bandwidth": {"": Case(svgd.median_bandwidth, {"particles": X})},
    "svgd.targets": {
        "gaussian": Case(
            lambda m, c: svgd.targets.gaussian(m, c).log_density(X[0]), {"m": X[0], "c": METRIC}
        ),
        "point": Case(lambda x: svgd.targets.gaussian(X[0], METRIC).log_density(x), {"x": X[1]}),
    },
    "svgd.SVGD": {
        "particles": Case(
            lambda x: (
                svgd.SVGD(optimizer=optax.sgd(0.1))
                .run(lambda p: -jnp.sum(p**2) / 2, x, 2, whiten=None)
                .particles
            ),
            {"x": X},
            noisy=1e4,
        )
    },
    "memory.map_sum": {
        "": Case(lambda x: memory.map_sum(lambda r: jnp.sum(r, 0), x, chunk_size=4), {"x": X})
    },
    "memory.map_concat": {
        "": Case(lambda x: memory.map_concat(lambda r: r * 2, x, chunk_size=4), {"x": X})
    },
    "t3.TuckerTensorTrain": {
        "to_dense": of_tensor(lambda x: x.to_dense()),
        "norm": of_tensor(lambda x: x.norm()),
        "inner": of_tensor(lambda x: x.inner(x)),
        "add": of_tensor(lambda x: (x + x).to_dense()),
        "times": of_tensor(lambda x, c: (x * c).to_dense(), c=H),
        "round": of_tensor(lambda x: x.round(2).to_dense()),
        "singular_values": of_tensor(lambda x: x.singular_values()),
        "from_dense": Case(lambda a: t3.TuckerTensorTrain.from_dense(a).to_dense(), {"a": DENSE}),
        "probe": _vectors_case(lambda w: FIXED.probe(w)),
        "apply": _vectors_case(lambda w: FIXED.apply(w)),
        "probe_derivatives": Case(
            lambda **a: FIXED.probe_derivatives(gathered("w", a), gathered("p", a), 2),
            vectors("w", W) | vectors("p", P),
        ),
    },
    "t3.apply_derivatives": {
        "": Case(
            lambda **a: t3.apply_derivatives(FIXED, gathered("w", a), gathered("p", a), 2),
            vectors("w", W) | vectors("p", P),
        )
    },
    "t3.probe_derivatives": {
        "": Case(
            lambda **a: t3.probe_derivatives(FIXED, gathered("w", a), gathered("p", a), 2),
            vectors("w", W) | vectors("p", P),
        )
    },
    "t3.entries_derivatives": {
        "": Case(
            lambda **a: t3.entries_derivatives(FIXED, INDEX, gathered("p", a), 2),
            vectors("p", [p[:3] for p in P]),
        )
    },
    "t3.probe_transpose": {
        "": Case(
            lambda **a: jax.tree.leaves(
                t3.probe_transpose(gathered("r", a), gathered("w", a), FIXED, sum_over_probes=True)
            ),
            vectors("w", W) | vectors("r", W),
        )
    },
    "t3.apply_transpose": {
        "": Case(
            lambda r, **a: jax.tree.leaves(
                t3.apply_transpose(r, gathered("w", a), FIXED, sum_over_probes=True)
            ),
            vectors("w", W) | {"r": whole(5, seed=17)},
        )
    },
    "t3.entries_transpose": {
        "": Case(
            lambda r: jax.tree.leaves(t3.entries_transpose(r, INDEX, FIXED, sum_over_probes=True)),
            {"r": whole(3, seed=18)},
        )
    },
}

# Public names without arrays of numbers among their arguments, or whose arrays are covered through others:
# results, errors, warnings, options, and functions that one of the cases above calls.
WITHOUT_ARRAYS = set(
    """
    memory.CalibrationWarning memory.Crossover memory.CrossoverRow memory.CrossoverTable
    memory.Devices memory.FileError memory.MemoryEstimateWarning memory.MemoryReport
    memory.PrecisionWarning memory.available_bytes memory.balanced_chunk_size memory.calibrate
    memory.checked_floats memory.checked_integer memory.checked_key memory.chunk_size_within
    memory.compiled_memory
    memory.crossovers memory.file_path memory.forced memory.format_bytes memory.load_arrays
    memory.mesh_axis memory.register memory.replace_file memory.row_bytes memory.save_arrays
    memory.working_dtype
    """.split()
)

KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "float32": lambda a: jnp.asarray(a, jnp.float32),
    "int32": lambda a: jnp.asarray(a, jnp.int32),
    "int8": lambda a: np.asarray(a, np.int8),
    "uint8": lambda a: np.asarray(np.abs(a), np.uint8),
    "bool": lambda a: np.asarray(a > 0),
    "float16": lambda a: jnp.asarray(a, jnp.float16),
    "bfloat16": lambda a: jnp.asarray(a, jnp.bfloat16),
    "float8": lambda a: jnp.asarray(a, jnp.float8_e4m3fn),
    "complex": lambda a: np.asarray(a + 1j),
    "lists": lambda a: a.tolist(),
    "read-only": lambda a: _read_only(a),
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "fortran": lambda a: np.asfortranarray(a),
    "masked": lambda a: np.ma.masked_equal(a, a.flat[0]),
    "strings": lambda a: np.asarray(a).astype(str),
    "flat": lambda a: a.reshape(-1) if a.ndim > 1 else a[None],
    "one column": lambda a: a[..., :1] if a.ndim and a.shape[-1] > 1 else a[None, None],
    "one row": lambda a: a[:1] if a.ndim and a.shape[0] > 1 else a[None, None],
}
# Kinds that have other values than the float64 arrays.
OTHER_VALUES = {"uint8": np.abs, "bool": lambda a: (a > 0).astype(float)}
# Kinds of another shape: an answer is wrong, as nothing was asked for it.
REFUSED = {"complex", "strings", "masked", "float8", "flat", "one column", "one row"}
COMPILER = (
    "XlaRuntimeError",
    "lax.",
    "dot_general",
    "Traced<",
    "jaxtyping",
    "custom_vjp",
    "concretiz",
)


def _read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def values(result) -> list[np.ndarray]:
    return [np.asarray(jnp.asarray(leaf)).astype(np.float64) for leaf in jax.tree.leaves(result)]


def judge(case: Case, kind: str, which: str | None) -> str | None:
    """What is wrong with a call where all arrays, or one of them, are of a kind; None when nothing is."""
    chosen = set(case.arrays) if which is None else {which}
    given = {n: KINDS[kind](a) if n in chosen else a for n, a in case.arrays.items()}
    try:
        result = jax.block_until_ready(case.call(**given))
    except (ValueError, TypeError) as error:
        text = str(error)
        if any(word in text for word in COMPILER) or type(error).__module__.startswith("jax"):
            return f"the compiler's words: {type(error).__name__}: {text[:160]}"
        if "\n" in text and "/src/" not in text and "JAX" in text:
            return f"JAX's words: {text[:160]}"
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:160]}"
    if kind in REFUSED:
        return "answered"
    changed = OTHER_VALUES.get(kind, lambda a: a)
    reference = {n: changed(a) if n in chosen else a for n, a in case.arrays.items()}
    try:
        expected = values(case.call(**reference))
    except (ValueError, TypeError):
        return "answered, where float64 is refused"
    found = values(result)
    half = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 6e-8}
    eps = half.get(kind, 1e-15)
    for a, b in zip(found, expected, strict=True):
        scale = max(np.abs(b).max(initial=0), 1e-300)
        # Half precision is added in float32: only the result is rounded, and inputs are whole.
        limit = 8 * eps if kind in ("float16", "bfloat16") else case.noisy * eps
        if a.shape != b.shape or not np.all(np.abs(a - b) <= limit * scale):
            off = np.abs(a - b).max(initial=0) / scale if a.shape == b.shape else a.shape
            return f"wrong by {off}"
    return None


def main(part: str) -> list:
    found = []
    for name, cases in CASES.items():
        if not name.startswith(part):
            continue
        for label, case in cases.items():
            for kind in KINDS:
                # Shapes are wrong one at a time; all wrong together may be right.
                singles = kind in ("flat", "one column", "one row", "complex")
                for which in case.arrays if singles else [None]:
                    if (
                        which is not None
                        and np.shape(KINDS[kind](case.arrays[which]))
                        == np.shape(case.arrays[which])
                        and kind != "complex"
                    ):
                        continue
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        wrong = judge(case, kind, which)
                    if wrong:
                        found.append([name, label, kind, which, wrong])
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))

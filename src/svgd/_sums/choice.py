"""Exact, cells or pairs: predicts what each costs for given particles and builds the cheapest."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import memory
from kernels import Gaussian
from svgd._sums.build import build_cells, build_pairs
from svgd._sums.cells import plan as _plan
from svgd._sums.matching import sample_of
from svgd._sums.partition import Partition, Report, as_device
from svgd._sums.sums import sum_over_pairs

_DEFAULT_LEAF = 64
# Where pairs beyond a radius are dropped, few leaves see each other. Milliseconds of the sums by
# particles in a leaf, tolerance 1e-3, d = 3, two CPU cores:
#     n = 100,000, h = 0.02     float32   8  45   16  55   32  80   64 174
#                               float64   8  62   16  75   32 158   64 340
#     n = 10,000, h = 0.1       float32   8 9.9   16 9.5   32 9.4   64  12
#                               float64   8  14   16  10   32  16   64  22
# Above three dimensions the walk over so many leaves costs more: n = 20,000, d = 8 0.6 s beside 0.13.
_DROPPED_LEAF, _DROPPED_LEAF_DIMENSION = 16, 3
# How much slower than the cheapest a plan may be for which programs are compiled already.
_LOYALTY = 1.5
# Particles from which cells are counted and pairs within reach are estimated.
_SAMPLE = 8192
_LARGE_SAMPLE = 131072
_MANY_CELLS = 2048
_PAIR_SAMPLE = 256


def _made_up(particles: int):
    """Particles for a measurement of a choice."""
    return np.random.default_rng(0).normal(size=(particles, 3)).astype(np.float32)


def _location_workload(particles: int):
    """Builds the tree and its pairs on the host, and on the device."""
    z = _made_up(particles)

    def build(host):
        options = {"leaf_size": _DEFAULT_LEAF, "both_sides": False, "pairing": None}
        return build_pairs(z, radius=np.inf, theta=0.7, host=host, **options)[0]

    return (lambda: build(True)), (lambda: build(False))


def _pairing_workload(pairs: int):
    """Sums over near pairs of 64 by 64 particles, in both directions, each way."""
    # All pairs of so many blocks.
    blocks = max(1, round(pairs**0.5))
    z = jnp.asarray(_made_up(64 * blocks))
    ways = []
    for both_sides in (False, True):
        options = {"leaf_size": _DEFAULT_LEAF, "both_sides": both_sides, "pairing": None}
        sums, _ = build_pairs(np.asarray(z), radius=np.inf, theta=0.0, host=True, **options)
        run = jax.jit(partial(sum_over_pairs, Gaussian(1.0).profile, chunk=None))
        ways.append(partial(run, as_device(sums), z, z))
    return tuple(ways)


LOCATION = memory.register(
    memory.Crossover(
        name="svgd.tree_location",
        threshold={"cpu": np.inf},
        unit="particles",
        below="host",
        above="device",
        # Milliseconds on two CPU cores, d = 3, leaves of 64, theta 0.7, host and device:
        #     n = 1,024  1.9  15     4,096  3.9  22     8,192  9.3  36     100,000  630  1120
        evidence="measured on two CPU cores: the host is faster up to 100,000 particles; not on "
        "accelerators",
        workload=_location_workload,
    )
)

PAIRING = memory.register(
    memory.Crossover(
        name="svgd.pairing",
        threshold={"cpu": 32},
        unit="directed pairs of blocks",
        below="directed",
        above="symmetric",
        # Milliseconds of the sums on two CPU cores, d = 3, blocks of 64, directed and symmetric:
        #     32 pairs  0.52  0.52     128  1.3  0.9     512  4.7  3.1     1,024  13.5  9.7
        #     209,000   704   499 forward, 1980  1480 with gradients
        evidence="measured on two CPU cores, where one evaluation for both sides wins from 32 pairs "
        "on; not on accelerators",
        workload=_pairing_workload,
    )
)


METHOD = memory.register(
    memory.Crossover(
        name="svgd.method",
        threshold=1.0,
        unit="predicted seconds exact / tree",
        below="exact",
        above="tree",
        evidence="unit costs in svgd._sums.cells.plan.UNIT_SECONDS",
    )
)

SUMS = memory.register(
    memory.Crossover(
        name="svgd.sums",
        threshold=1.0,
        unit="predicted seconds pairs / cells",
        below="pairs",
        above="cells",
        evidence="unit costs in svgd._sums.cells.plan.UNIT_SECONDS",
    )
)


class UnusedParameterWarning(UserWarning):
    """A parameter of the update has no effect on the partition that was built."""


def build_partition(update, particles, like: tuple[int, ...] | None = None) -> Partition:
    """The partition of `particles` for a `SteinUpdate`, in given shapes where they will do."""
    n, dimension = particles.shape
    dtype = np.dtype(particles.dtype)
    # A point of the bulk, whatever the outliers: coordinates are most exact near the origin.
    sample = np.array(sample_of(np.asarray(particles)))
    origin = as_device(np.median(sample, axis=0).astype(dtype))
    places = (origin, as_device(sample))
    seconds = {"exact": _plan.exact_seconds(n, dimension, dtype)}
    if update.method == "exact":
        return _exact(update, places, n, seconds, "as asked")
    # One contiguous row for each axis: NumPy reduces those ten times faster than columns.
    columns = np.ascontiguousarray(np.asarray(_scaled(update.kernel, particles, origin)).T)
    location = LOCATION.choose(n)
    if update.theta is not None:
        return _by_angle(update, places, columns, seconds, location)
    return _by_tolerance(update, places, columns, seconds, location, like)


# One program, where every operation would be one by itself.
@jax.jit
def _scaled(kernel, particles, origin):
    return kernel.scale(particles - origin[None, :])


def _by_angle(update, places, columns, seconds, location):
    dimension, n = columns.shape
    if update.theta == 0:
        # Leaf by leaf the same pairs take three to five times as long, and a list of all leaf pairs:
        # n = 10,000, d = 3, two CPU cores, float32 128 and 39 ms, float64 250 and 62.
        _warn_unused(update, "theta = 0 opens everything: all pairs are summed at once")
        return _exact(update, places, n, seconds, "theta = 0 opens everything")
    z = columns.T
    leaf = update.leaf_size or _DEFAULT_LEAF
    sums, counts = build_pairs(
        z, radius=np.inf, theta=update.theta, **_pair_options(update, location, leaf)
    )
    entries = counts["tile_pairs"] + counts["num_far_entries"] * sums.blocks.slot_particle.shape[1]
    seconds["pairs"] = _plan.pairs_seconds(entries, n, dimension, z.dtype)
    if _exact_wins(update, seconds["exact"], seconds["pairs"]):
        return _exact(update, places, n, seconds)
    accuracy = f"opening angle theta = {update.theta:g}; nothing is dropped"
    return _tree(update, places, n, None, sums, counts, seconds, accuracy, location)


def _by_tolerance(update, places, columns, seconds, location, like):
    dimension, n = columns.shape
    z = columns.T
    sample = z[:: max(1, n // _SAMPLE)]
    sides = columns.max(1) - columns.min(1)
    plans = _plan.cell_plans(update.kernel, update.tolerance, sample, sides, n, z.dtype)
    if plans and plans[0].cells > _MANY_CELLS and n > 2 * _SAMPLE:
        # A small sample misses most of many cells, and then their cost decides.
        larger = z[:: max(1, n // _LARGE_SAMPLE)]
        plans = _plan.cell_plans(update.kernel, update.tolerance, larger, sides, n, z.dtype)
    if like is not None and plans:
        # Compiling costs more than a plan that is a little slower.
        bound = _LOYALTY * plans[0].seconds
        plans.sort(key=lambda plan: (plan.count, plan.reach) != like[:2] or plan.seconds > bound)
    radius = update.kernel.cutoff(update.tolerance)
    few = np.isfinite(radius) and dimension <= _DROPPED_LEAF_DIMENSION
    leaf = update.leaf_size or (_DROPPED_LEAF if few else _DEFAULT_LEAF)
    near = _near_estimate(sample, radius, n, leaf)
    seconds["pairs"] = _plan.pairs_seconds(near, n, dimension, z.dtype)
    for plan in plans:
        seconds["cells"] = plan.seconds
        if SUMS.choose(seconds["pairs"] / plan.seconds) == "pairs":
            break
        if _exact_wins(update, seconds["exact"], plan.seconds):
            break
        built = build_cells(columns, plan, like)
        if built is None:
            continue
        _warn_unused(
            update,
            "with a tolerance these particles are summed over cells, without pairs of leaves",
        )
        accuracy = (
            f"tolerance {update.tolerance:g}: {plan.count} polynomials an axis in cells of half-width "
            f"{plan.half_width:.3g} h, {len(plan.rates)} Gaussian(s), dropped beyond "
            f"{plan.cutoff:.3g} of their widths; kernel error at most {plan.error:.2g}"
        )
        return _tree(update, places, n, built[0], None, built[1], seconds, accuracy, location)
    if _exact_wins(update, seconds["exact"], seconds["pairs"]):
        return _exact(update, places, n, seconds)
    sums, counts = build_pairs(z, radius=radius, theta=0.0, **_pair_options(update, location, leaf))
    # Now with the pairs of the list: the estimate doesn't know how wide leaves are.
    seconds["pairs"] = _plan.pairs_seconds(counts["tile_pairs"], n, dimension, z.dtype)
    if _exact_wins(update, seconds["exact"], seconds["pairs"]):
        return _exact(update, places, n, seconds)
    accuracy = f"tolerance {update.tolerance:g}: pairs of leaves beyond {radius:.3g} h are dropped"
    return _tree(update, places, n, None, sums, counts, seconds, accuracy, location)


def _warn_unused(update, why):
    unused = [
        name
        for name, value in (
            ("leaf_size", update.leaf_size),
            ("chunk_pairs", update.chunk_pairs),
            ("pairing", None if update.pairing == "auto" else update.pairing),
        )
        if value is not None
    ]
    if unused:
        warnings.warn(
            f"{', '.join(unused)} has no effect here: {why}; it acts with theta above 0",
            UnusedParameterWarning,
            # Through `build_partition`, `SteinUpdate.partition` and equinox's binding of it.
            stacklevel=6,
        )


def _exact_wins(update, exact, tree):
    return update.method == "auto" and METHOD.choose(exact / tree) == "exact"


def _pair_options(update, location, leaf):
    return {
        "leaf_size": leaf,
        "both_sides": None if update.pairing == "auto" else update.pairing == "symmetric",
        "pairing": PAIRING,
        "host": location == "host",
    }


def _near_estimate(sample, radius, n, leaf):
    """Pairs of particles within twice the radius, from a sample, and those of leaves with themselves.

    A lower bound where leaves are wider than the radius, as in many dimensions.
    """
    if not np.isfinite(radius):
        return float(n) ** 2
    rows = sample[:: max(1, sample.shape[0] // _PAIR_SAMPLE)]
    others = sample[:: max(1, sample.shape[0] // (4 * _PAIR_SAMPLE))]
    distance = np.sqrt(
        sum((rows[:, None, k] - others[None, :, k]) ** 2 for k in range(sample.shape[1]))
    )
    return float(n) ** 2 * float(np.mean(distance < 2 * radius)) + float(leaf) * n


def _exact(update, places, n, seconds, reason="predicted to be the fastest"):
    report = Report(
        num_leaves=1,
        num_near_leaf_pairs=1,
        num_far_pairs=0,
        num_far_entries=0,
        num_tiles=1,
    )
    report.text = lambda: _text(report, "exact", reason, n, seconds, "exact up to rounding", None)
    return Partition(
        origin=places[0],
        cells=None,
        pairs=None,
        kernel=None,
        sample=None,
        tolerance=update.tolerance,
        theta=update.theta,
        num_particles=n,
        method="tree" if update.method == "tree" else "exact",
        sums="exact",
        report=report,
    )


def _tree(update, places, n, cells, pairs, counts, seconds, accuracy, location):
    report = Report(**counts)
    kind = "cells" if cells is not None else "pairs"
    reason = "as asked" if update.method == "tree" else "predicted to be the fastest"
    pairing = None if pairs is None else ("symmetric" if pairs.both_sides else "directed")
    report.text = lambda: _text(
        report, f"tree, sums over {kind}", reason, n, seconds, accuracy, (location, pairing)
    )
    return Partition(
        origin=places[0],
        cells=as_device(cells),
        pairs=as_device(pairs),
        kernel=update.kernel,
        sample=places[1],
        tolerance=update.tolerance,
        theta=update.theta,
        num_particles=n,
        method="tree",
        sums=kind,
        report=report,
    )


def _text(report, method, reason, n, seconds, accuracy, choices):
    backend = jax.default_backend()
    lines = [
        f"{n:,} particles on {backend}: {method} ({reason})",
        f"accuracy: {accuracy}",
    ]
    guess = "" if backend == "cpu" else f", from unit costs of two CPU cores: guesses on {backend}"
    predicted = ", ".join(f"{name} {value:.3g}" for name, value in seconds.items())
    lines.append(f"predicted seconds{guess}: {predicted}")
    if choices is not None:
        location, pairing = choices
        counts = {
            "cells" if pairing is None else "leaves": report.num_leaves,
            "near leaf pairs (directed)": report.num_near_leaf_pairs,
            "far pairs": report.num_far_pairs,
            "far entries": report.num_far_entries,
            "tiles": report.num_tiles,
        }
        # A count of 0 is of something that this way of summing doesn't have.
        told = "; ".join(f"{name} {count:,}" for name, count in counts.items() if count)
        lines.insert(2, told)
        lines.append(f"built on the {location} (crossover {LOCATION.name})")
        if pairing is not None:
            lines.append(f"pairing {pairing} (crossover {PAIRING.name})")
    return "\n".join(lines)

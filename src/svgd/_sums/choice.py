"""All pairs, cells, leaves: predicts what each costs for given particles and builds the cheapest."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float

import memory
from svgd._sums.abstract import AbstractSum, Counts, Problem, Settings, sample_of
from svgd._sums.all_pairs import AllPairs
from svgd._sums.cells.cells import Cells
from svgd._sums.costs import exact_seconds
from svgd._sums.leaves.leaves import Leaves
from svgd._sums.matching import check_match
from svgd._sums.partition import Partition, Record

# The ways that methods "auto" and "tree" choose from.
WAYS: tuple[type[AbstractSum], ...] = (Leaves, Cells)

# Below so many particles the exact update wins whatever their places, so "auto" needs no partition.
ALWAYS_EXACT = 1024

METHOD = memory.register(
    memory.Crossover(
        name="svgd.method",
        threshold=1.0,
        unit="predicted seconds exact / tree",
        below="exact",
        above="tree",
        evidence="unit costs in svgd._sums.costs.UNIT_SECONDS",
    )
)

SUMS = memory.register(
    memory.Crossover(
        name="svgd.sums",
        threshold=1.0,
        unit="predicted seconds pairs / cells",
        below="pairs",
        above="cells",
        evidence="unit costs in svgd._sums.costs.UNIT_SECONDS",
    )
)


class UnusedParameterWarning(UserWarning):
    """A parameter of the update has no effect on the partition that was built."""


def needs_partition(update: Settings, n: int) -> bool:
    """Whether an update of n particles sums over a partition, which it can't build when traced."""
    if update.method == "auto":
        return n >= ALWAYS_EXACT or update.theta is not None
    return update.method != "exact"


def partition_for(
    update: Settings, particles: Float[Array, "n d"], partition: Partition | None
) -> Partition | None:
    """The partition given, checked, or one built from concrete particles where one is needed."""
    if partition is not None:
        check_match(update, particles, partition)
    elif needs_partition(update, particles.shape[0]):
        partition = build_partition(update, particles)
    return partition


def build_partition(
    update: Settings, particles: Float[Array, "n d"], like: tuple[int, ...] | None = None
) -> Partition:
    """The partition of `particles`, in given shapes where they will do.

    Raises:
        ValueError: on traced values, and where a way of one's own cannot sum these particles.
    """
    _check_concrete(update, particles)
    # A point of the bulk, whatever the outliers: coordinates are most exact near the origin.
    sample = np.array(sample_of(np.asarray(particles)))
    origin = np.median(sample, axis=0).astype(sample.dtype)
    ways = WAYS if isinstance(update.method, str) else (update.method,)
    seconds = {way.name: np.nan for way in (AllPairs, *ways)}
    seconds["exact"] = exact_seconds(*particles.shape, sample.dtype)
    found = AllPairs(), Counts(seconds=seconds["exact"])
    if update.theta == 0:
        # Leaf by leaf the same pairs take three to five times as long, and a list of all leaf pairs:
        # n = 10,000, d = 3, two CPU cores, float32 128 and 39 ms, float64 250 and 62.
        _warn_unused(update, AllPairs, "theta = 0 opens everything: all pairs are summed at once")
    elif update.method != "exact":
        # One contiguous row for each axis: NumPy reduces those ten times faster than columns.
        scaled = np.asarray(_scaled(update.kernel, particles, jax.device_put(origin)))
        problem = Problem(
            kernel=update.kernel,
            tolerance=update.tolerance,
            theta=update.theta,
            leaf_size=update.leaf_size,
            columns=np.ascontiguousarray(scaled.T),
            like=like,
        )
        found = _cheapest(update, ways, problem, seconds) or found
    way, counts = found
    exact = isinstance(way, AllPairs)
    partition = Partition(
        way=way,
        origin=origin,
        kernel=None if exact else update.kernel,
        sample=None if exact else sample,
        record=Record.of(counts, seconds),
        tolerance=update.tolerance,
        theta=update.theta,
        num_particles=particles.shape[0],
        method="exact" if exact and update.method != "tree" else "tree",
        asked=update.method != "auto",
    )
    # At once, where `jnp.asarray` would compile a copy for every shape.
    return jax.device_put(partition)


# One program, where every operation would be one by itself.
@jax.jit
def _scaled(kernel, particles, origin):
    return kernel.scale(particles - origin[None, :])


def _check_concrete(update, particles):
    traced = [
        name
        for name, value in (("particles", particles), ("the kernel", update.kernel))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
    ]
    if traced:
        raise ValueError(
            f"a partition needs concrete values, but {' and '.join(traced)} are traced: call "
            "update.partition(particles) outside jit, grad and vmap, and pass its result to "
            "update(particles, scores, partition)"
        )


def _cheapest(
    update: Settings,
    ways: Sequence[type[AbstractSum]],
    problem: Problem,
    seconds: dict[str, float],
) -> tuple[AbstractSum, Counts] | None:
    """What the cheapest plan builds; None where all pairs are cheaper. Fills `seconds`."""

    def exact_wins(name):
        # Only "auto" may take all pairs in the place of what it was asked for.
        ratio = seconds["exact"] / seconds[name]
        return update.method == "auto" and METHOD.choose(ratio) == METHOD.below

    left = {way: list(plans) for way in ways if (plans := way.plans(problem))}
    while left:
        for way, plans in left.items():
            seconds[way.name] = plans[0].seconds
        way = _preferred(list(left), seconds)
        if exact_wins(way.name):
            return None
        found = left[way].pop(0).build()
        if not left[way]:
            del left[way]
        if found is None:
            continue
        seconds[way.name] = found[1].seconds
        if exact_wins(way.name):
            return None
        why = f"these particles are summed over {way.name}, without pairs of leaves"
        _warn_unused(update, way, why)
        return found
    if not isinstance(update.method, str):
        raise ValueError(
            f"{update.method.__name__} has no plan for {problem.n} particles in "
            f'{problem.dimension} dimensions that meets the accuracy: take method "auto"'
        )
    return None


def _preferred(ways, seconds):
    """The way whose first plan is predicted to be the fastest."""
    best = ways[0]
    for way in ways[1:]:
        ratio = seconds[best.name] / seconds[way.name]
        if (best.name, way.name) == (SUMS.below, SUMS.above):
            better = SUMS.choose(ratio) == SUMS.above
        else:
            better = ratio >= 1
        best = way if better else best
    return best


def _warn_unused(update, way, why):
    given = {
        "leaf_size": update.leaf_size is not None,
        "chunk_pairs": update.chunk_pairs is not None,
        "pairing": update.pairing != "auto",
    }
    unused = [name for name, is_given in given.items() if is_given and name not in way.reads]
    if unused:
        memory.warn_caller(
            f"{', '.join(unused)} has no effect here: {why}; it acts with theta above 0",
            UnusedParameterWarning,
        )

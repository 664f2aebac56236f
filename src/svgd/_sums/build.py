"""Builds partitions on the host: counts the work of each method, and prepares the cheapest."""

import numpy as np
from jaxtyping import Float

from svgd._sums.blocks import best_block_size, make_blocks, size_class
from svgd._sums.cells import plan as _plan
from svgd._sums.cells import proxies as proxies
from svgd._sums.cells.lattice import build_lattice, coarsen, sweep_tables
from svgd._sums.cells.sweeps import Level
from svgd._sums.leaves import tree as _tree
from svgd._sums.leaves import walk as _walk
from svgd._sums.partition import CellSums, FarSums, PairSums, pad_rows

# Nodes that one far entry evaluates against a block.
_FAR_GROUP = 64
# Moments and fields of all cells may take so many bytes.
_MAX_PROXY_BYTES = 2**30


def build_cells(
    columns: Float[np.ndarray, "d n"], plan: _plan.CellPlan, like: tuple[int, ...] | None = None
) -> tuple[CellSums, dict] | None:
    """A sum over cells by a plan, and its counts.

    Args:
        columns: scaled coordinates, one contiguous row for each axis.
        plan: from `svgd._sums.cells.plan.cell_plans`.
        like: the shapes of an earlier partition, which are taken where they fit.

    Returns:
        None where the lattice cannot be numbered, or its proxies take too much memory.
    """
    dimension, dtype = columns.shape[0], columns.dtype
    edge = 2 * plan.half_width
    corner = np.zeros(dimension, dtype)
    if plan.reach == 0:
        corner = ((columns.min(1) + columns.max(1) - edge) / 2).astype(dtype)
    lattice = build_lattice(columns, edge, corner if plan.reach == 0 else None)
    if lattice is None:
        return None
    moments = plan.count**dimension
    needed = 2 * lattice.counts.shape[0] * moments * (2 * dimension + 1) * np.dtype(dtype).itemsize
    if needed > _MAX_PROXY_BYTES and lattice.counts.shape[0] > 1:
        return None
    found = _levels(lattice.positions, plan, dtype, like)
    if found is None:
        return None
    levels, spare, entries, far_pairs = found
    block_size, num_blocks = best_block_size(lattice.counts), None
    if like is not None:
        old_size, old_blocks = like[2:4]
        used = int(np.sum(-(-lattice.counts // old_size)))
        if block_size // 2 <= old_size <= 2 * block_size and used <= old_blocks <= 2 * used:
            block_size, num_blocks = old_size, old_blocks
    blocks, _ = make_blocks(
        lattice.order,
        lattice.starts,
        lattice.counts,
        block_size,
        num_blocks=num_blocks,
        spare_group=spare,
    )
    middle = corner + (lattice.positions + 0.5) * edge
    sums = CellSums(
        blocks=blocks,
        middle=pad_rows(middle.astype(dtype), spare + 1, 0),
        half_width=np.asarray(plan.half_width, dtype),
        levels=levels,
        count=plan.count,
        weight=plan.weight,
    )
    counts = {
        "shapes": (
            plan.count,
            plan.reach,
            block_size,
            blocks.slot_particle.shape[0],
            levels[0].into[0].shape[0],
        ),
        "num_leaves": int(lattice.counts.shape[0]),
        "num_near_leaf_pairs": 0,
        "num_far_pairs": far_pairs,
        "num_far_entries": entries,
        "num_tiles": 2 * int(np.sum(-(-lattice.counts // block_size))),
    }
    return sums, counts


def _levels(positions, plan, dtype, like=None):
    """The levels of the lattice, its spare cell, and the counts of sweep entries and cell pairs."""
    weights, rates = np.array(plan.weights), np.array(plan.rates)
    # The coarsest level at which a Gaussian's cells are still narrow enough for the proxies.
    level_of = np.floor(np.log2(plan.widest / (plan.half_width * np.sqrt(rates))) + 1e-6)
    single = len(rates) == 1
    levels, entries, far_pairs, spare = [], 0, 0, None
    # Counted from a corner, so that halving ends in a single cell.
    positions = positions - positions.min(0)
    depth = 0
    while True:
        extents = positions.max(0) - positions.min(0)
        top = single or not extents.any() or depth >= level_of.max()
        mine = level_of >= depth if top else level_of == depth
        half_width = plan.half_width * 2**depth
        reach = 0
        if mine.any():
            reach = int(np.ceil(plan.cutoff / (2 * half_width * np.sqrt(rates[mine].min())) - 1e-6))
        reach = min(max(reach, plan.reach if single else 0), max(int(extents.max()), 0))
        tables = sweep_tables(positions, reach)
        if tables is None:
            return None
        largest = max(into.shape[0] for into in tables)
        size = size_class(largest + 1)
        if like is not None and depth == 0 and largest < like[4] <= 2 * size:
            size = like[4]
        translations = [
            proxies.translations(float(rate), float(half_width), reach, plan.count, plan.weight)
            for rate in rates[mine]
        ]
        parents = parent = side = None
        if not top:
            parents, parent, side = coarsen(positions)
        levels.append(
            {
                "into": tuple(_padded(into, size) for into in tables),
                "values": _stack([values for values, _ in translations], reach, plan.count, dtype),
                "slopes": _stack([slopes for _, slopes in translations], reach, plan.count, dtype),
                "weights": weights[mine].astype(dtype),
                "parent": parent,
                "side": side,
            }
        )
        spare = size - 1 if spare is None else spare
        if mine.any():
            entries += int(sum(np.sum(into >= 0) for into in tables))
            far_pairs += _count_pairs(positions, reach)
        if top:
            break
        positions = parents
        depth += 1
    # A missing parent is the coarser level's spare cell, whose moments nobody reads.
    for fine, coarse in zip(levels, levels[1:], strict=False):
        size = fine["into"][0].shape[0]
        fine["parent"] = pad_rows(fine["parent"], size, coarse["into"][0].shape[0] - 1)
        fine["side"] = pad_rows(fine["side"], size, 0)
    return tuple(Level(**level) for level in levels), spare, entries, far_pairs


def _padded(table, size):
    return pad_rows(np.where(table < 0, size - 1, table).astype(np.int32), size, size - 1)


def _stack(tables, reach, count, dtype):
    if not tables:
        return np.zeros((0, 2 * reach + 1, count, count), dtype)
    return np.stack(tables).astype(dtype)


def _count_pairs(positions, reach):
    """Directed pairs of occupied cells within reach of each other, a cell with itself included."""
    shape = positions - positions.min(0) + reach
    extents = shape.max(0) + reach + 1
    if np.prod(extents.astype(np.float64)) > 2**26 or reach == 0:
        # Counting would cost more than summing: every cell with all neighbours is the upper bound.
        return positions.shape[0] * min(positions.shape[0], (2 * reach + 1) ** positions.shape[1])
    occupied = np.zeros(extents, np.int32)
    occupied[tuple(shape.T)] = 1
    total = occupied
    for axis in range(positions.shape[1]):
        summed = np.cumsum(total, axis=axis, dtype=np.int32)
        width = 2 * reach + 1
        shifted = np.zeros_like(summed)
        index = [slice(None)] * positions.shape[1]
        later, earlier = list(index), list(index)
        later[axis], earlier[axis] = slice(width, None), slice(None, -width)
        shifted[tuple(later)] = summed[tuple(earlier)]
        total = np.roll(summed - shifted, -reach, axis=axis)
    return int(total[tuple(shape.T)].sum())


def build_pairs(
    z: Float[np.ndarray, "n d"],
    *,
    leaf_size: int,
    radius: float,
    theta: float,
    both_sides: bool | None,
    pairing,
    host: bool,
) -> tuple[PairSums, dict]:
    """Near pairs of leaves, with a radius beyond which they are dropped or an opening angle."""
    if host:
        tree = _tree.build(z, leaf_size)
        walked = _walk.walk(tree, radius=radius, theta=theta)
        expand = _walk.expand
    else:
        tree = _tree.build_on_device(z, leaf_size)
        walked = _walk.walk_on_device(tree, radius=radius, theta=theta)
        expand = _walk.expand_on_device
    start, stop, left = (np.asarray(rows) for rows in (tree.start, tree.stop, tree.left))
    leaves = np.flatnonzero(left < 0)
    leaves = leaves[np.argsort(start[leaves], kind="stable")]
    counts = (stop - start)[leaves].astype(np.int64)
    block_size = int(min(64, max(8, 2 ** int(np.ceil(np.log2(max(counts.mean(), 1)))))))
    used = int(np.sum(-(-counts // block_size)))
    num_blocks = size_class(used + 1)
    blocks, first_block = make_blocks(
        np.asarray(tree.order),
        start[leaves],
        counts,
        block_size,
        num_blocks=num_blocks,
        spare_group=leaves.shape[0],
    )
    # Leaves tile the particles, so a node's blocks run from its first leaf's to its last leaf's.
    first_block = np.append(first_block, used)
    begin = first_block[np.searchsorted(start[leaves], start)]
    end = first_block[np.searchsorted(start[leaves], stop)]

    near = [np.asarray(rows) for rows in (walked.near_first, walked.near_second)]
    first, second = block_pairs(begin[near[0]], end[near[0]], begin[near[1]], end[near[1]])
    far = None
    num_far = 2 * int(walked.far_first.shape[0])
    entries = 0
    if num_far:
        far, entries = _far(walked, tree, begin, end, leaves, num_blocks, expand)
    directed = 2 * first.shape[0] - int(np.sum(first == second))
    if both_sides is None:
        both_sides = pairing.choose(directed) == pairing.above
    if not both_sides:
        first, second = directed_pairs(first, second)
    size = size_class(first.shape[0])
    spare = np.int32(num_blocks - 1)
    sums = PairSums(
        blocks=blocks,
        first=pad_rows(first, size, spare),
        second=pad_rows(second, size, spare),
        far=far,
        both_sides=both_sides,
    )
    same = int(np.sum(near[0] == near[1]))
    report = {
        "num_leaves": int(leaves.shape[0]),
        "num_near_leaf_pairs": 2 * int(near[0].shape[0]) - same,
        "num_far_pairs": num_far,
        "num_far_entries": entries,
        "num_tiles": int(first.shape[0]) + (0 if far is None else int(far.block.shape[0])),
        "tile_pairs": directed * block_size**2,
    }
    return sums, report


def block_pairs(begin_a, end_a, begin_b, end_b):
    """Unordered pairs of blocks, each once, of unordered pairs of leaves given by block ranges."""
    size_a, size_b = end_a - begin_a, end_b - begin_b
    pair, member = _walk.expand(np.arange(size_a.shape[0]), np.zeros_like(size_a), size_a * size_b)
    a = (begin_a[pair] + member // size_b[pair]).astype(np.int32)
    b = (begin_b[pair] + member % size_b[pair]).astype(np.int32)
    # A leaf with itself meets each pair of its blocks twice.
    keep = (begin_a[pair] != begin_b[pair]) | (a <= b)
    a, b = np.minimum(a, b)[keep], np.maximum(a, b)[keep]
    order = np.lexsort((b, a))
    return a[order], b[order]


def directed_pairs(first, second):
    """Both directions of unordered pairs, sorted by target: (targets, sources)."""
    other = first != second
    targets = np.concatenate([first, second[other]])
    sources = np.concatenate([second, first[other]])
    order = np.lexsort((sources, targets))
    return targets[order], sources[order]


def unordered_pairs(targets, sources):
    """Each unordered pair once, from a list of directed pairs that must hold both directions.

    A particle whose source does not list it back would receive nothing from it.

    Raises:
        ValueError: when a pair's other direction is missing, or a pair is listed twice.
    """
    targets, sources = np.asarray(targets, np.int64), np.asarray(sources, np.int64)
    if targets.shape != sources.shape or targets.ndim != 1:
        raise ValueError(
            f"targets and sources must be two lists of one length, got {targets.shape} and "
            f"{sources.shape}"
        )
    width = int(max(targets.max(initial=-1), sources.max(initial=-1))) + 1
    codes, counts = np.unique(targets * width + sources, return_counts=True)
    if (counts > 1).any():
        code = codes[counts > 1][0]
        raise ValueError(f"the near pair ({code // width}, {code % width}) is listed twice")
    mirrored = (codes % width) * width + codes // width
    missing = codes[~np.isin(mirrored, codes)]
    if missing.size:
        a, b = missing[0] // width, missing[0] % width
        raise ValueError(
            f"the near list is not symmetric: it holds the pair ({a}, {b}) but not ({b}, {a}), so "
            f"{missing.size} of {codes.size} interactions would act one way only; list both"
        )
    once = codes[codes // width <= codes % width]
    return (once // width).astype(np.int32), (once % width).astype(np.int32)


def _far(walked, tree, begin, end, leaves, num_blocks, expand):
    """Far entries grouped by target block, and the leaves of each far node."""
    a, b = np.asarray(walked.far_first), np.asarray(walked.far_second)
    target, source = np.concatenate([a, b]), np.concatenate([b, a])
    used, source = np.unique(source, return_inverse=True)
    owner, block = expand(source.astype(np.int32), begin[target], end[target] - begin[target])
    owner, block = np.asarray(owner), np.asarray(block)
    order = np.lexsort((owner, block))
    owner, block = owner[order], block[order]

    num_nodes = size_class(used.shape[0] + 1)
    per_block = np.bincount(block, minlength=num_blocks)
    groups = -(-per_block // _FAR_GROUP)
    first_group = np.cumsum(groups) - groups
    within = np.arange(block.shape[0]) - np.repeat(np.cumsum(per_block) - per_block, per_block)
    size = size_class(int(groups.sum()))
    group = np.full((size, _FAR_GROUP), num_nodes - 1, np.int32)
    group[first_group[block] + within // _FAR_GROUP, within % _FAR_GROUP] = owner
    group_block = pad_rows(
        np.repeat(np.arange(num_blocks, dtype=np.int32), groups), size, np.int32(num_blocks - 1)
    )
    node, member = expand(
        np.arange(used.shape[0], dtype=np.int32), begin[used], end[used] - begin[used]
    )
    node, member = np.asarray(node), np.asarray(member)
    members = size_class(node.shape[0])
    far = FarSums(
        node=pad_rows(node, members, np.int32(num_nodes - 1)),
        member=pad_rows(member, members, np.int32(num_blocks - 1)),
        block=group_block,
        group=group,
        num_nodes=num_nodes,
    )
    return far, int(block.shape[0])

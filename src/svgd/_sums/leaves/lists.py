"""Lists of near pairs of blocks and of far nodes, from a walk: on the host."""

import numpy as np

from svgd._sums.blocks import pad_rows, size_class
from svgd._sums.leaves.nodes import FAR_GROUP, FarNodes
from svgd._sums.leaves.walk import Walk, expand


def block_pairs(begin_a, end_a, begin_b, end_b):
    """Unordered pairs of blocks, each once, sorted, of pairs of leaves given by block ranges."""
    size_a, size_b = end_a - begin_a, end_b - begin_b
    pair, member = expand(np.arange(size_a.shape[0]), np.zeros_like(size_a), size_a * size_b)
    a = (begin_a[pair] + member // size_b[pair]).astype(np.int32)
    b = (begin_b[pair] + member % size_b[pair]).astype(np.int32)
    # A leaf with itself meets each pair of its blocks twice.
    keep = (begin_a[pair] != begin_b[pair]) | (a <= b)
    return unordered_pairs(a[keep], b[keep])


def unordered_pairs(first, second):
    """Each unordered pair once, sorted, from a list that holds all in one direction or all in both.

    A particle whose source does not list it back would receive nothing from it.

    Raises:
        ValueError: when pairs are listed in both directions, but not all of them, and when a pair is
            listed twice.
    """
    first, second = np.asarray(first, np.int64), np.asarray(second, np.int64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"a list of pairs must be two lists of one length, got {first.shape} and {second.shape}"
        )
    width = int(max(first.max(initial=-1), second.max(initial=-1))) + 1
    codes = np.minimum(first, second) * width + np.maximum(first, second)
    codes.sort()
    if np.any(codes[1:] == codes[:-1]):
        codes = _once(first * width + second, width)
    return (codes // width).astype(np.int32), (codes % width).astype(np.int32)


def _once(codes, width):
    """The pairs of a directed list that point forward; an error unless all pairs point both ways."""
    codes, counts = np.unique(codes, return_counts=True)
    if (counts > 1).any():
        code = codes[counts > 1][0]
        raise ValueError(f"the near pair ({code // width}, {code % width}) is listed twice")
    missing = codes[~np.isin((codes % width) * width + codes // width, codes)]
    if missing.size:
        a, b = missing[0] // width, missing[0] % width
        raise ValueError(
            f"the near list is not symmetric: it holds the pair ({a}, {b}) but not ({b}, {a}), so "
            f"{missing.size} of {codes.size} interactions would act one way only; list both"
        )
    return codes[codes // width <= codes % width]


def far_nodes(walked: Walk, begin, end, num_blocks: int) -> tuple[FarNodes, int]:
    """Far entries grouped by target block, and the blocks of each far node; and how many entries."""
    a, b = walked.far_first, walked.far_second
    target, source = np.concatenate([a, b]), np.concatenate([b, a])
    used, source = np.unique(source, return_inverse=True)
    owner, block = expand(source.astype(np.int32), begin[target], end[target] - begin[target])
    order = np.lexsort((owner, block))
    owner, block = owner[order], block[order]

    num_nodes = size_class(used.shape[0] + 1)
    per_block = np.bincount(block, minlength=num_blocks)
    groups = -(-per_block // FAR_GROUP)
    first_group = np.cumsum(groups) - groups
    within = np.arange(block.shape[0]) - np.repeat(np.cumsum(per_block) - per_block, per_block)
    size = size_class(int(groups.sum()))
    group = np.full((size, FAR_GROUP), num_nodes - 1, np.int32)
    group[first_group[block] + within // FAR_GROUP, within % FAR_GROUP] = owner
    group_block = pad_rows(
        np.repeat(np.arange(num_blocks, dtype=np.int32), groups), size, np.int32(num_blocks - 1)
    )
    node, member = expand(
        np.arange(used.shape[0], dtype=np.int32), begin[used], end[used] - begin[used]
    )
    members = size_class(node.shape[0])
    far = FarNodes(
        node=pad_rows(node, members, np.int32(num_nodes - 1)),
        member=pad_rows(member, members, np.int32(num_blocks - 1)),
        block=group_block,
        group=group,
        num_nodes=num_nodes,
    )
    return far, int(block.shape[0])

"""What each way of summing costs, from counts of its work."""

import numpy as np

# Seconds for one unit of work in float32 on two CPU cores, at the chunk sizes in force:
#     pair        one pair of particles in the exact update (n = 16384, d = 3)
#     tile_pair   one pair of slots of two near blocks
#     slot        one particle into its block and back
#     weight      one interpolation weight of one particle
#     moment      one moment of one particle and channel, up or down
#     sweep       one value of a cell and channel, read by a neighbour
#     call        dispatch of the compiled update and of the host's part, once
# Fitted to n = 1e6, d = 3, h = 0.1, tolerance 2e-3, seconds by p and reach: the sweeps 6, 2 0.71; 7, 2
# 0.85; 8, 2 0.48; 9, 1 0.43; 10, 1 0.42; 12, 1 0.36; up and down 0.39, 0.48, 0.32, 0.51, 0.58, 0.61.
UNIT_SECONDS = {
    "pair": 0.37e-9,
    "tile_pair": 0.55e-9,
    "slot": 16e-9,
    "weight": 0.8e-9,
    "moment": 0.04e-9,
    "sweep": 2.7e-9,
    "cell": 2e-6,
    "call": 1e-3,
}
# float64 has half the lanes of float32. These differ: n = 20,000, d = 3, exact 148 and 238 ms; 0.54 and
# 1.5 ns a pair of slots.
_DOUBLE = {"pair": 1.6, "tile_pair": 2.7}

# Rows of whole vector registers.
_ALIGNED = 8
_ALIGNED_SHARE = 0.7


def unit_seconds(name: str, dtype) -> float:
    """Seconds for one unit of work, see `UNIT_SECONDS`."""
    factor = _DOUBLE.get(name, 2.0) if np.dtype(dtype).itemsize == 8 else 1.0
    if name == "call":
        factor = 1.0
    return UNIT_SECONDS[name] * factor


def exact_seconds(n: int, dimension: int, dtype) -> float:
    """Predicted time of the exact update."""
    return unit_seconds("call", dtype) + n**2 * unit_seconds("pair", dtype) * (dimension + 5) / 8


def pairs_seconds(tile_pairs: float, n: int, dimension: int, dtype) -> float:
    """Predicted time of sums over near leaves."""
    per_pair = unit_seconds("tile_pair", dtype) * (dimension + 5) / 8
    return (
        2 * unit_seconds("call", dtype)
        + tile_pairs * per_pair
        + n * 20 * unit_seconds("slot", dtype)
    )


def cells_seconds(plan_count, reach, gaussians, cells, n, dimension, dtype) -> float:
    """Predicted time of sums over cells."""
    p, d = plan_count, dimension
    wide, narrow = (d + 1) // 2, d // 2
    weights = 2 * p**wide + (2 * d + 1) * p**narrow + 2 * d * p
    share = _ALIGNED_SHARE if p % _ALIGNED == 0 else 1.0
    particle = unit_seconds("slot", dtype) + share * (
        weights * unit_seconds("weight", dtype) + (2 * d + 1) * p**d * unit_seconds("moment", dtype)
    )
    sweep = share * (2 * reach + 1) * d * (d + 1) * p**d * unit_seconds("sweep", dtype)
    # Blocks are padded: each cell costs about half a block of the smallest size.
    per_cell = gaussians * sweep + unit_seconds("cell", dtype) + 8 * particle
    return 3 * unit_seconds("call", dtype) + n * particle + cells * per_cell

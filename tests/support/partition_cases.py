"""Updates whose sums are taken in a given way, and the exact one to compare with."""

import memory
import svgd
from kernels import Gaussian


def exact(kernel, x, s):
    return svgd.SteinUpdate(kernel, method="exact")(x, s)


def forced_cells():
    return memory.forced("svgd.sums", "cells")


WAYS = {
    "cells": {},
    "pairs": {},
    "theta": {"theta": 0.5},
    "exact": {"method": "exact"},
}


def built(x, way, kernel=None, **options):
    """An update and its partition, summed in a given way."""
    options = {"method": "tree"} | WAYS[way] | options
    with memory.forced("svgd.sums", "cells" if way == "cells" else "pairs"):
        update = svgd.SteinUpdate(Gaussian(0.5) if kernel is None else kernel, **options)
        return update, update.partition(x)

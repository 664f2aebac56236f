"""Applies: the tensor contracted with vectors in all modes."""

from typing import Any

import equinox as eqx

from t3._sampling.contraction import Contraction
from t3._sampling.probes import Modes, Probes, vector_probes


class Apply(Contraction):
    """The tensor contracted with ``x_i + s p_i`` in all modes, and derivatives in s at 0.

    Values are ``(*W,)``, with an order ``(K + 1, *W)``. Cost of a transpose: ``16 n r^2`` operations
    for each probe and mode.

    Attributes:
        ww: points, d arrays ``(*W, N_i)`` with any number of probe axes; or stacked ``(d, *W, N)``.
        pp: directions of the same shapes, or None.
        order: highest derivative K; None for plain applies, whose values have no order axis.
    """

    ww: Modes
    pp: Modes | None = None
    order: int | None = eqx.field(static=True, default=None)

    def probes(self, shape: tuple[int, ...], dtype: Any) -> Probes:
        return vector_probes(
            shape, self.ww, self.pp, self.order or 0, self.count(len(shape)), dtype
        )

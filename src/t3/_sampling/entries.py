"""Entries of the tensor."""

from typing import Any, ClassVar

import equinox as eqx

from t3._sampling.contraction import Contraction
from t3._sampling.probes import Modes, Probes, index_probes


class Entries(Contraction):
    """The tensor contracted with ``e_{index_i} + s p_i`` in all modes, and derivatives in s at 0.

    Values are ``(*W,)``, with an order ``(K + 1, *W)``.

    Attributes:
        index: integers from 0 on, ``(d, *W)`` or d arrays ``(*W,)``. Out of range raises where the
            values are known, and gives NaN under transformations.
        pp: directions, d arrays ``(*W, N_i)``, or None.
        order: highest derivative K; None for plain entries, whose values have no order axis.
    """

    indexed: ClassVar[bool] = True

    index: Any
    pp: Modes | None = None
    order: int | None = eqx.field(static=True, default=None)

    def probes(self, shape: tuple[int, ...], dtype: Any) -> Probes:
        return index_probes(
            shape, self.index, self.pp, self.order or 0, self.count(len(shape)), dtype
        )

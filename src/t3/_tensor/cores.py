"""The cores of a Tucker tensor train: their storage, checks and sizes."""

from typing import Any

import equinox as eqx
from jaxtyping import Array

from t3._tensor.network import HoleTrains, Network, Train
from t3._tensor.packing import Cores, as_cores, end_vector, is_packed
from t3._tensor.ranks import FrameRanks, T3Ranks, minimal_ranks


class TensorCores(Network):
    """What `t3.TuckerTensorTrain` holds; the attributes are described there."""

    tucker_cores: Cores = eqx.field(converter=as_cores)
    tt_cores: Cores = eqx.field(converter=as_cores)
    ranks: T3Ranks | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.is_packed:
            if self.ranks is None:
                raise ValueError("Packed cores need ranks=T3Ranks(...); or use x.pack().")
            return
        if not self.tucker_cores or len(self.tucker_cores) != len(self.tt_cores):
            raise ValueError(
                f"A Tucker tensor train needs the same positive number of Tucker and train cores, "
                f"got {len(self.tucker_cores)} and {len(self.tt_cores)}."
            )
        for i, (b, g) in enumerate(zip(self.tucker_cores, self.tt_cores, strict=True)):
            before = self.tt_cores[i - 1].shape[-1:] if i else g.shape[:1]
            if (b.ndim, g.ndim) != (2, 3) or g.shape[1] != b.shape[0] or g.shape[:1] != before:
                raise ValueError(
                    f"Cores of mode {i} do not fit: Tucker core {b.shape}, train core {g.shape}, "
                    f"expected (n, N) and (r, n, r') with r = {before} from the mode before."
                )

    @property
    def is_packed(self) -> bool:
        return is_packed(self.tucker_cores)

    @property
    def sizes(self) -> T3Ranks:
        """True sizes, whichever the storage."""
        if self.ranks is not None:
            return self.ranks
        return T3Ranks(
            tuple(b.shape[1] for b in self.tucker_cores),
            tuple(b.shape[0] for b in self.tucker_cores),
            (*(g.shape[0] for g in self.tt_cores), self.tt_cores[-1].shape[2]),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes.shape

    @property
    def ndim(self) -> int:
        return len(self.sizes.shape)

    @property
    def tucker_ranks(self) -> tuple[int, ...]:
        return self.sizes.tucker

    @property
    def tt_ranks(self) -> tuple[int, ...]:
        return self.sizes.tt

    @property
    def minimal_ranks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Largest Tucker and train ranks that a tensor of these sizes can really have."""
        return minimal_ranks(*self.sizes)

    @property
    def dtype(self) -> Any:
        return self.tucker_cores[0].dtype

    @property
    def left_end(self) -> Array:
        """Closes the bond left of the first mode, ``(r_0,)`` or padded."""
        return end_vector(self.sizes.tt[0], self.tt_cores[0].shape[0], self.dtype)

    @property
    def right_end(self) -> Array:
        """Closes the bond right of the last mode, ``(r_d,)`` or padded."""
        return end_vector(self.sizes.tt[-1], self.tt_cores[-1].shape[2], self.dtype)

    @property
    def train(self) -> Train:
        """The cores and what closes them, for sampling."""
        return Train(self.tucker_cores, self.tt_cores, self.left_end, self.right_end)

    @property
    def hole_sizes(self) -> FrameRanks:
        """True sizes of the tensor seen as the frame of its own cores."""
        s = self.sizes
        return FrameRanks(s.shape, s.tucker, s.tucker, s.tt, s.tt)

    @property
    def holes(self) -> HoleTrains:
        """The tensor seen as the frame of its own cores."""
        tt, bonds = self.tt_cores, self.sizes.tt
        left_end, right_end = self.left_end[: bonds[0]], self.right_end[: bonds[-1]]
        return HoleTrains(self.tucker_cores, tt, tt, tt, left_end, right_end)

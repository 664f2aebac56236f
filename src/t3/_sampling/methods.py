"""Sampling as methods: thin forms of the functions in `_sampling` and `_transpose`."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax

from t3._sampling import forward as _sampling
from t3._sampling import transpose as _transpose
from t3._sampling.chunk_size import ChunkSize

if TYPE_CHECKING:
    from t3._sampling.probes import Modes
    from t3._tangent.frame import T3Frame, T3Variations
    from t3._tangent.tangent import T3Tangent


class Sampled(eqx.Module):
    """What tensors and tangents share: samples of them, with derivatives along a line."""

    def probe(self, ww: "Modes", *, chunk_size: ChunkSize = "auto") -> "Modes":
        """All modes but one contracted with vectors: d arrays ``(*W, N_i)``."""
        jets = self.probe_derivatives(ww, None, 0, chunk_size=chunk_size)
        return jets[:, 0] if hasattr(jets, "shape") else tuple(jet[0] for jet in jets)

    def apply(self, ww: "Modes", *, chunk_size: ChunkSize = "auto") -> jax.Array:
        """All modes contracted with vectors: ``(*W,)``."""
        return self.apply_derivatives(ww, None, 0, chunk_size=chunk_size)[0]

    def entries(self, index: Any, *, chunk_size: ChunkSize = "auto") -> jax.Array:
        """Entries at ``(d, *W)`` integers: ``(*W,)``."""
        return self.entries_derivatives(index, None, 0, chunk_size=chunk_size)[0]

    def probe_derivatives(
        self, ww: "Modes", pp: "Modes | None", order: int, *, chunk_size: ChunkSize = "auto"
    ) -> "Modes":
        """See `t3.probe_derivatives`: d arrays ``(K + 1, *W, N_i)``."""
        return _sampling.probe_derivatives(self, ww, pp, order, chunk_size=chunk_size)

    def apply_derivatives(
        self, ww: "Modes", pp: "Modes | None", order: int, *, chunk_size: ChunkSize = "auto"
    ) -> jax.Array:
        """See `t3.apply_derivatives`: ``(K + 1, *W)``."""
        return _sampling.apply_derivatives(self, ww, pp, order, chunk_size=chunk_size)

    def entries_derivatives(
        self, index: Any, pp: "Modes | None", order: int, *, chunk_size: ChunkSize = "auto"
    ) -> jax.Array:
        """See `t3.entries_derivatives`: ``(K + 1, *W)``."""
        return _sampling.entries_derivatives(self, index, pp, order, chunk_size=chunk_size)


class SampledTensor(Sampled):
    """Samples of a tensor, and their transposes onto its own cores.

    The transposes return gradients in the cores, Tucker and train, as `t3.T3Variations`; options
    are `sum_over_probes` and `chunk_size` as in `t3.probe_derivatives_transpose`.
    """

    def probe_corewise_transpose(
        self, residual: "Modes", ww: "Modes", **options: Any
    ) -> "T3Variations":
        """Gradient in the cores of ``<residual, self.probe(ww)>``."""
        return _transpose.probe_transpose(residual, ww, self, **options)

    def apply_corewise_transpose(
        self, residual: Any, ww: "Modes", **options: Any
    ) -> "T3Variations":
        """Gradient in the cores of ``<residual, self.apply(ww)>``."""
        return _transpose.apply_transpose(residual, ww, self, **options)

    def entries_corewise_transpose(
        self, residual: Any, index: Any, **options: Any
    ) -> "T3Variations":
        """Gradient in the cores of ``<residual, self.entries(index)>``."""
        return _transpose.entries_transpose(residual, index, self, **options)

    def probe_corewise_derivatives_transpose(
        self, residual: "Modes", ww: "Modes", pp: "Modes | None", order: int, **options: Any
    ) -> "T3Variations":
        """Gradient in the cores of ``<residual, self.probe_derivatives(ww, pp, order)>``."""
        return _transpose.probe_derivatives_transpose(residual, ww, pp, self, order, **options)

    def apply_corewise_derivatives_transpose(
        self, residual: Any, ww: "Modes", pp: "Modes | None", order: int, **options: Any
    ) -> "T3Variations":
        """Gradient in the cores of ``<residual, self.apply_derivatives(ww, pp, order)>``."""
        return _transpose.apply_derivatives_transpose(residual, ww, pp, self, order, **options)

    def entries_corewise_derivatives_transpose(
        self, residual: Any, index: Any, pp: "Modes | None", order: int, **options: Any
    ) -> "T3Variations":
        """Gradient in the cores of ``<residual, self.entries_derivatives(index, pp, order)>``."""
        return _transpose.entries_derivatives_transpose(residual, index, pp, self, order, **options)


class SampledTangent(Sampled):
    """Samples of a tangent (J v), and their transposes (J^T r).

    The transposes return a tangent at the frame. With `sum_over_probes`, it is one tangent;
    without, every variation has the probe axes in front, and ``jax.vmap`` over the variations makes
    tangents of them, so the bare `t3.T3Variations` are returned.
    """

    @staticmethod
    def probe_transpose(
        residual: "Modes", ww: "Modes", frame: "T3Frame", **options: Any
    ) -> "T3Tangent | T3Variations":
        """Transpose of `probe`."""
        return _tangent(frame, _transpose.probe_transpose(residual, ww, frame, **options), options)

    @staticmethod
    def apply_transpose(
        residual: Any, ww: "Modes", frame: "T3Frame", **options: Any
    ) -> "T3Tangent | T3Variations":
        """Transpose of `apply`."""
        return _tangent(frame, _transpose.apply_transpose(residual, ww, frame, **options), options)

    @staticmethod
    def entries_transpose(
        residual: Any, index: Any, frame: "T3Frame", **options: Any
    ) -> "T3Tangent | T3Variations":
        """Transpose of `entries`."""
        return _tangent(
            frame, _transpose.entries_transpose(residual, index, frame, **options), options
        )

    @staticmethod
    def probe_derivatives_transpose(
        residual: "Modes",
        ww: "Modes",
        pp: "Modes | None",
        frame: "T3Frame",
        order: int,
        **options: Any,
    ) -> "T3Tangent | T3Variations":
        """Transpose of `probe_derivatives`; see `t3.probe_derivatives_transpose`."""
        variations = _transpose.probe_derivatives_transpose(
            residual, ww, pp, frame, order, **options
        )
        return _tangent(frame, variations, options)

    @staticmethod
    def apply_derivatives_transpose(
        residual: Any,
        ww: "Modes",
        pp: "Modes | None",
        frame: "T3Frame",
        order: int,
        **options: Any,
    ) -> "T3Tangent | T3Variations":
        """Transpose of `apply_derivatives`; see `t3.apply_derivatives_transpose`."""
        variations = _transpose.apply_derivatives_transpose(
            residual, ww, pp, frame, order, **options
        )
        return _tangent(frame, variations, options)

    @staticmethod
    def entries_derivatives_transpose(
        residual: Any,
        index: Any,
        pp: "Modes | None",
        frame: "T3Frame",
        order: int,
        **options: Any,
    ) -> "T3Tangent | T3Variations":
        """Transpose of `entries_derivatives`; see `t3.entries_derivatives_transpose`."""
        variations = _transpose.entries_derivatives_transpose(
            residual, index, pp, frame, order, **options
        )
        return _tangent(frame, variations, options)


def _tangent(frame, variations, options):
    from t3._tangent.tangent import T3Tangent

    return T3Tangent(frame, variations) if options.get("sum_over_probes", False) else variations

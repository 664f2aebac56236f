"""Sampling as methods of tensors and of tangents: `t3.sample` and `t3.sample_transpose`."""

from typing import Any

import equinox as eqx
import jax

from t3._sampling import functions
from t3._sampling.apply import Apply
from t3._sampling.entries import Entries
from t3._sampling.probe import Probe
from t3._sampling.probes import Modes, checked_order
from t3._sampling.sample import sample, sample_transpose
from t3._sampling.sampling import Sampling
from t3._tensor.network import Network, T3Variations


class Sampled(eqx.Module):
    """What tensors and tangents share: samples of them. Options are those of `t3.sample`."""

    def sample(self, sampling: Sampling, **options: Any) -> Any:
        """See `t3.sample`."""
        return sample(self, sampling, **options)

    def probe(self, ww: Modes, **options: Any) -> Modes:
        """All modes but one contracted with vectors: d arrays ``(*W, N_i)``."""
        return sample(self, Probe(ww), **options)

    def apply(self, ww: Modes, **options: Any) -> jax.Array:
        """All modes contracted with vectors: ``(*W,)``."""
        return sample(self, Apply(ww), **options)

    def entries(self, index: Any, **options: Any) -> jax.Array:
        """Entries at ``(d, *W)`` integers: ``(*W,)``."""
        return sample(self, Entries(index), **options)

    def probe_derivatives(self, ww: Modes, pp: Modes | None, order: int, **options: Any) -> Modes:
        """Derivatives of `probe` along `pp`: d arrays ``(K + 1, *W, N_i)``."""
        return functions.probe_derivatives(self, ww, pp, order, **options)

    def apply_derivatives(
        self, ww: Modes, pp: Modes | None, order: int, **options: Any
    ) -> jax.Array:
        """Derivatives of `apply` along `pp`: ``(K + 1, *W)``."""
        return functions.apply_derivatives(self, ww, pp, order, **options)

    def entries_derivatives(
        self, index: Any, pp: Modes | None, order: int, **options: Any
    ) -> jax.Array:
        """Derivatives of `entries` along `pp`: ``(K + 1, *W)``."""
        return functions.entries_derivatives(self, index, pp, order, **options)


class SampledTensor(Sampled, Network):
    """Samples of a tensor, and their transposes onto its own cores.

    The transposes return gradients in the cores, Tucker and train, as `t3.T3Variations`; options
    are those of `t3.sample_transpose`.
    """

    def probe_corewise_transpose(self, residual: Modes, ww: Modes, **options: Any) -> T3Variations:
        """Gradient in the cores of ``<residual, self.probe(ww)>``."""
        return functions.probe_transpose(residual, ww, self, **options)

    def apply_corewise_transpose(self, residual: Any, ww: Modes, **options: Any) -> T3Variations:
        """Gradient in the cores of ``<residual, self.apply(ww)>``."""
        return functions.apply_transpose(residual, ww, self, **options)

    def entries_corewise_transpose(self, residual: Any, index: Any, **options: Any) -> T3Variations:
        """Gradient in the cores of ``<residual, self.entries(index)>``."""
        return functions.entries_transpose(residual, index, self, **options)

    def probe_corewise_derivatives_transpose(
        self, residual: Modes, ww: Modes, pp: Modes | None, order: int, **options: Any
    ) -> T3Variations:
        """Gradient in the cores of ``<residual, self.probe_derivatives(ww, pp, order)>``."""
        return functions.probe_derivatives_transpose(residual, ww, pp, self, order, **options)

    def apply_corewise_derivatives_transpose(
        self, residual: Any, ww: Modes, pp: Modes | None, order: int, **options: Any
    ) -> T3Variations:
        """Gradient in the cores of ``<residual, self.apply_derivatives(ww, pp, order)>``."""
        return functions.apply_derivatives_transpose(residual, ww, pp, self, order, **options)

    def entries_corewise_derivatives_transpose(
        self, residual: Any, index: Any, pp: Modes | None, order: int, **options: Any
    ) -> T3Variations:
        """Gradient in the cores of ``<residual, self.entries_derivatives(index, pp, order)>``."""
        return functions.entries_derivatives_transpose(residual, index, pp, self, order, **options)


class SampledTangent(Sampled):
    """Samples of a tangent (J v), and their transposes (J^T r).

    The transposes return a tangent at the frame. With `sum_over_probes`, it is one tangent;
    without, every variation has the probe axes in front, and ``jax.vmap`` over the variations makes
    tangents of them, so the bare `t3.T3Variations` are returned.
    """

    frame: eqx.AbstractVar[Any]
    variations: eqx.AbstractVar[T3Variations]

    @classmethod
    def sample_transpose(
        cls,
        residual: Any,
        sampling: Sampling,
        frame: Network,
        *,
        sum_over_probes: bool = False,
        **options: Any,
    ) -> Any:
        """See `t3.sample_transpose`."""
        options["sum_over_probes"] = sum_over_probes
        variations = sample_transpose(residual, sampling, frame, **options)
        return cls(frame, variations) if sum_over_probes else variations

    @classmethod
    def probe_transpose(cls, residual: Modes, ww: Modes, frame: Network, **options: Any) -> Any:
        """Transpose of `probe`."""
        return cls.sample_transpose(residual, Probe(ww), frame, **options)

    @classmethod
    def apply_transpose(cls, residual: Any, ww: Modes, frame: Network, **options: Any) -> Any:
        """Transpose of `apply`."""
        return cls.sample_transpose(residual, Apply(ww), frame, **options)

    @classmethod
    def entries_transpose(cls, residual: Any, index: Any, frame: Network, **options: Any) -> Any:
        """Transpose of `entries`."""
        return cls.sample_transpose(residual, Entries(index), frame, **options)

    @classmethod
    def probe_derivatives_transpose(
        cls,
        residual: Modes,
        ww: Modes,
        pp: Modes | None,
        frame: Network,
        order: int,
        **options: Any,
    ) -> Any:
        """Transpose of `probe_derivatives`."""
        return cls.sample_transpose(residual, Probe(ww, pp, checked_order(order)), frame, **options)

    @classmethod
    def apply_derivatives_transpose(
        cls, residual: Any, ww: Modes, pp: Modes | None, frame: Network, order: int, **options: Any
    ) -> Any:
        """Transpose of `apply_derivatives`."""
        return cls.sample_transpose(residual, Apply(ww, pp, checked_order(order)), frame, **options)

    @classmethod
    def entries_derivatives_transpose(
        cls, residual: Any, index: Any, pp: Modes | None, frame: Network, order: int, **options: Any
    ) -> Any:
        """Transpose of `entries_derivatives`."""
        sampling = Entries(index, pp, checked_order(order))
        return cls.sample_transpose(residual, sampling, frame, **options)

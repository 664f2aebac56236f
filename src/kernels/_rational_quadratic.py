"""The rational quadratic, a profile with a shape parameter."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from kernels._mixtures import power_rates, power_weights
from kernels._profiles import RadialKernel
from memory import checked_floats

# Dropping far pairs gains something where a profile reaches at most so many times as far as a Gaussian.
_FURTHER = 3.0


class RationalQuadratic(RadialKernel):
    """k(x, y) = (1 + |x - y|^2 / (2 alpha h^2))^-alpha.

    A Gaussian of rates that are gamma-distributed about 1: heavy tails for small alpha, the Gaussian
    itself as alpha grows. The shape is trained with the bandwidth, over all pairs and over cells.

    Attributes:
        log_alpha: (). Trainable.

    Source:
        Rasmussen and Williams, Gaussian processes for machine learning, 2006, equation 4.19.
    """

    log_alpha: Float[Array, ""]

    def __init__(
        self,
        bandwidth: ArrayLike | Sequence[float] | None = None,
        alpha: ArrayLike = 1.0,
        *,
        metric: ArrayLike | None = None,
    ):
        """
        Args:
            bandwidth, metric: as for every `RadialKernel`.
            alpha: positive, shape (). May be traced.

        Raises:
            ValueError: on an alpha that is not a positive, finite scalar, and as `RadialKernel` does.
        """
        super().__init__(bandwidth, metric=metric)
        alpha = checked_floats("alpha", alpha).astype(jnp.result_type(float))
        traced = isinstance(alpha, jax.core.Tracer)
        if alpha.shape != () or not (traced or (np.isfinite(alpha) and alpha > 0)):
            raise ValueError(f"alpha must be one positive, finite number, got {alpha}")
        self.log_alpha = jnp.log(alpha)

    @property
    def alpha(self) -> Float[Array, ""]:
        """The shape parameter."""
        return jnp.exp(self.log_alpha)

    def weights(self, r2: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
        alpha = self.alpha.astype(r2.dtype)
        scaled = r2 / (2 * alpha)
        u = 1 / (1 + scaled)
        f = jnp.exp(-alpha * jnp.log1p(scaled))
        slope = u * f
        return f, slope, (1 + 1 / alpha) * u * slope

    def mixture(self, tolerance: float, radius: float) -> tuple[float, ...] | None:
        alpha = float(self.alpha)
        return power_rates(alpha, alpha, tolerance, radius)

    def mixture_weights(self, rates: tuple[float, ...] | Float[Array, " g"]) -> Float[Array, " g"]:
        return power_weights(rates, self.alpha, self.alpha)

    def cutoff(self, tolerance: float) -> float:
        alpha = float(self.alpha)
        exponent = -math.log(tolerance) / alpha
        radius = math.sqrt(2 * alpha * math.expm1(exponent)) if exponent < 100 else math.inf
        return radius if radius < _FURTHER * math.sqrt(-2 * math.log(tolerance)) else math.inf

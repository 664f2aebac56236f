"""Radial kernels and memory-bounded sums over pairs of particles."""

from kernels._multiscale import Multiscale
from kernels._pairwise import kernel_sum, stein_sum
from kernels._profiles import Gaussian, InverseMultiquadric, RadialKernel
from kernels._rational_quadratic import RationalQuadratic
from memory import __version__ as __version__

__all__ = [
    "Gaussian",
    "InverseMultiquadric",
    "Multiscale",
    "RadialKernel",
    "RationalQuadratic",
    "kernel_sum",
    "stein_sum",
]

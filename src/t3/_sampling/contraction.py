"""Samplings that contract every mode, with one number for each probe: forward and transpose.

The transpose has one residual for all modes, which starts sigma~; slots are x and p. Symbols as in
`t3._sampling.probe`.
"""

from typing import Any

import jax.numpy as jnp

from t3._sampling.jets import affine_adjoint_rows, correlation_outer, factorials
from t3._sampling.sampling import Sampling
from t3._sampling.walks import (
    affine_step,
    apart,
    apply_outer,
    arranged,
    arranged_back,
    derivatives,
    each_mode,
    first_jet,
    gathered,
    grow,
    input_cotangents,
    inputs_part,
    matmul,
    project_modes,
    tangent_slots,
    tangent_step,
    train_part,
    zero_jet,
)
from t3._tensor.network import HoleTrains, Train
from t3._tensor.packing import Cores, sweep


class Contraction(Sampling):
    """A number for each probe: all modes contracted with vectors, or with unit vectors."""

    def slots(self, count: int) -> int:
        return min(count, 2)

    @apart
    def sample_chunk(self, train: Train, count: int, points: Any, directions: Any) -> Any:
        slots = project_modes(train.tucker, points, directions)
        first, end = train.ends
        step = affine_step(slots[0].shape[-2] - 1)
        last, _ = sweep(step, first_jet(count, first, slots[0]), (arranged(train.tt), slots))
        return derivatives(matmul(last, end))

    def tangent_chunk(
        self,
        holes: HoleTrains,
        variations: tuple[Cores, Cores],
        count: int,
        points: Any,
        directions: Any,
    ) -> Any:
        slots, both = tangent_slots(holes.tucker, variations[0], points, directions)
        source = each_mode(lambda v, o: jnp.concatenate([v, o], 1), variations[1], holes.down)
        first, end = holes.ends
        nothing = zero_jet(count, holes.right[0].shape[0], slots[0])
        start = first_jet(count, first, slots[0]), nothing
        cores = (arranged(holes.left), arranged(holes.right), arranged(source), slots, both)
        (_, sigma), _ = sweep(tangent_step(slots[0].shape[-2] - 1), start, cores)
        return derivatives(matmul(sigma, end))

    @apart
    def transpose_chunk(
        self,
        holes: HoleTrains,
        count: int,
        points: Any,
        directions: Any,
        residual: Any,
        kept: Any = None,
        *,
        keep: bool,
    ) -> tuple[Cores, Cores]:
        del kept
        walks = _walks(holes, count, points, directions, residual)

        def mode(tucker, hole, slots, mu, sigma, point, direction):
            z = correlation_outer(mu, sigma, 0 if direction is None else 1)
            d_tucker = inputs_part(apply_outer(z, hole), point, direction, tucker.shape[-1], keep)
            return d_tucker, train_part(slots, jnp.stack(z, axis=1), keep)

        return each_mode(mode, holes.tucker, gathered(holes.down), *walks, points, directions)

    @apart
    def input_chunk(
        self, holes: HoleTrains, count: int, points: Any, directions: Any, residual: Any
    ) -> tuple[Any, ...]:
        walks = _walks(holes, count, points, directions, residual)

        def mode(tucker, hole, slots, mu, sigma, direction):
            z = correlation_outer(mu, sigma, 0 if direction is None else 1)
            return input_cotangents(apply_outer(z, hole), tucker)[int(self.indexed) :]

        return each_mode(mode, holes.tucker, gathered(holes.down), *walks, directions)


def _walks(holes, count, points, directions, residual):
    """Slots, and the jets mu before and sigma~ after every mode."""
    slots = project_modes(holes.tucker, points, directions)
    degree = slots[0].shape[-2] - 1

    def back(jet, mode):
        core, slot = mode
        return grow(affine_adjoint_rows(jet, degree), slot, core), jet

    first, end = holes.ends
    first = first_jet(count, first, slots[0])
    _, left = sweep(affine_step(degree), first, (arranged(holes.left), slots))
    scale = jnp.asarray(factorials(count, end.dtype))
    last = (residual * scale[:, None]).T[:, :, None] * end[None, None, :]
    _, right = sweep(back, last, (arranged_back(holes.right), slots), reverse=True)
    return slots, left, right

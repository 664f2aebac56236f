"""Probes: the tensor contracted with vectors in all modes but one, for each mode.

For a tangent v at a frame let ``J v`` be its sampled jets. The transpose gives the variations
``J^T r`` with ``<r, J v> = <J^T r, v>`` for all v.

With slots d_0 .. d_K (projected residual, derivative t scaled by t!), x and p at every mode:

    left walk    jets mu, and tau~ that gather the residuals to the left, over left cores
    right walk   jets nu, and sigma~ that gather the residuals to the right, over right cores
    every mode   E_t = sum_q mu_q nu_{t-q}^T          the adjoint of slot d_t
                 F_u = sum_q mu_q sigma~_{q+u}^T      F_0 of slot x, F_1 of slot p
                     + sum_q tau~_{q+u} nu_q^T
                 Z = (E_0 .. E_K, F_0, F_1)
                 dG = sum over slots of slot . Z,   dU = (O . Z) . (residual, x, p)

so that a mode costs four large products of ``2 w (K + 3) n r^2`` operations (two walks, dG, O . Z)
and nothing larger than the K + 3 matrices of a probe exists.

Source: jets of Alger, Christierson, Chen and Ghattas (2026), arXiv:2603.21141, theorem 7.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from t3._sampling.jets import (
    affine_adjoint_rows,
    affine_rows,
    convolution_outer,
    correlation_outer,
    correlation_rows,
    factorials,
)
from t3._sampling.probes import Modes, Probes, vector_probes
from t3._sampling.sampling import Sampling
from t3._sampling.walks import (
    affine_step,
    apart,
    apply_outer,
    arranged,
    arranged_back,
    each_mode,
    first_jet,
    gathered,
    grow,
    input_cotangents,
    inputs_part,
    jets_part,
    lift_jets,
    project,
    project_jets,
    project_modes,
    tangent_slots,
    tangent_step,
    through_hole,
    train_part,
    zero_jet,
)
from t3._tensor.network import HoleTrains, Train
from t3._tensor.packing import Cores, sweep


class Probe(Sampling):
    """Each mode in turn left open, ``x_j + s p_j`` in all others, and derivatives in s at 0.

    Values are d arrays ``(*W, N_i)``, with an order ``(K + 1, *W, N_i)``; stacked where the points
    are. Cost for each probe and mode: ``2 (K + 5) n r^2`` operations for a tensor's values, and
    ``8 (K + 3) n r^2`` for a transpose. Orders above d - 1 cost nothing.

    Attributes:
        ww: points, d arrays ``(*W, N_i)`` with any number of probe axes; or stacked ``(d, *W, N)``.
        pp: directions of the same shapes, or None.
        order: highest derivative K; None for plain probes, whose values have no order axis.
    """

    by_mode: ClassVar[bool] = True

    ww: Modes
    pp: Modes | None = None
    order: int | None = eqx.field(static=True, default=None)

    def probes(self, shape: tuple[int, ...], dtype: Any) -> Probes:
        return vector_probes(
            shape, self.ww, self.pp, self.order or 0, self.count(len(shape)), dtype
        )

    def degree(self, ndim: int) -> int:
        return ndim - 1

    def sample_chunk(self, train: Train, count: int, points: Any, directions: Any) -> Any:
        return self.sample_chunk_keeping(train, count, points, directions)[0]

    @apart
    def sample_chunk_keeping(
        self, train: Train, count: int, points: Any, directions: Any
    ) -> tuple[Any, Any]:
        slots = project_modes(train.tucker, points, directions)
        step = affine_step(slots[0].shape[-2] - 1)
        first, end = train.ends
        _, left = sweep(step, first_jet(count, first, slots[0]), (arranged(train.tt), slots))
        _, right = sweep(
            step, first_jet(count, end, slots[0]), (arranged_back(train.tt), slots), reverse=True
        )
        scale = jnp.asarray(factorials(count, end.dtype))

        def mode(core, hole, mu, nu):
            eta = apply_outer(convolution_outer(mu, nu), hole)
            return lift_jets(core, eta, scale), jnp.swapaxes(eta, 0, 1)

        jets, centre = each_mode(mode, train.tucker, gathered(train.tt), left, right)
        if isinstance(centre, tuple):
            # Beside a bond of 1, making them again costs no more than keeping them.
            centre = tuple(
                None if 1 in (core.shape[0], core.shape[2]) else coefficients
                for core, coefficients in zip(train.tt, centre, strict=True)
            )
        return jets, centre

    def tangent_chunk(
        self,
        holes: HoleTrains,
        variations: tuple[Cores, Cores],
        count: int,
        points: Any,
        directions: Any,
    ) -> Any:
        tucker, train = variations
        slots, both = tangent_slots(holes.tucker, tucker, points, directions)
        first, last = holes.ends
        step = tangent_step(slots[0].shape[-2] - 1)
        source = each_mode(lambda v, o: jnp.concatenate([v, o], 1), train, holes.down)

        def walk(end, size, turn, along, varied, **options):
            start = first_jet(count, end, slots[0]), zero_jet(count, size, slots[0])
            cores = (turn(along), turn(varied), turn(source), slots, both)
            return sweep(step, start, cores, **options)[1]

        right_size, left_size = holes.right[0].shape[0], holes.left[-1].shape[2]
        left = walk(first, right_size, arranged, holes.left, holes.right)  # mu and sigma
        right = walk(last, left_size, arranged_back, holes.right, holes.left, reverse=True)
        scale = jnp.asarray(factorials(count, first.dtype))

        def mode(up, down, left_core, right_core, d_up, d_core, mu, sigma, nu, tau):
            centre = convolution_outer(mu, nu)
            d_eta = apply_outer(centre, d_core)
            d_eta += apply_outer(convolution_outer(sigma, nu), right_core)
            d_eta += apply_outer(convolution_outer(mu, tau), left_core)
            eta = apply_outer(centre, down)
            return lift_jets(up, d_eta, scale) + lift_jets(d_up, eta, scale)

        families = map(gathered, (holes.down, holes.left, holes.right))
        return each_mode(mode, holes.tucker, *families, tucker, gathered(train), *left, *right)

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
        # What was kept of a forward pass is O . E, which saves most of the fourth product.
        walks = _walks(holes, count, points, directions, residual)
        scale = jnp.asarray(factorials(count, holes.left_end.dtype))

        def mode(hole, slots, mu, tau, nu, sigma, point, direction, jets, eta):
            e = jnp.stack(convolution_outer(mu, nu), axis=1)
            f = _input_outer(mu, tau, nu, sigma, direction)
            z = jnp.concatenate([e, f], axis=1)
            if eta is None:
                inputs = through_hole(z, hole)
                eta, inputs = inputs[:, :count], inputs[:, count:]
            else:
                eta, inputs = jnp.swapaxes(eta, 0, 1), through_hole(f, hole)
            d_train = train_part(slots, z, keep)
            d_tucker = jets_part(eta * scale[None, :, None], jets, keep)
            d_tucker += inputs_part(inputs, point, direction, jets.shape[-1], keep)
            return d_tucker, d_train

        return each_mode(mode, gathered(holes.down), *walks, points, directions, residual, kept)

    @apart
    def input_chunk(
        self, holes: HoleTrains, count: int, points: Any, directions: Any, residual: Any
    ) -> tuple[Any, ...]:
        walks = _walks(holes, count, points, directions, residual)

        def mode(tucker, hole, slots, mu, tau, nu, sigma, direction):
            z = _input_outer(mu, tau, nu, sigma, direction)
            return input_cotangents(through_hole(z, hole), tucker)

        return each_mode(mode, holes.tucker, gathered(holes.down), *walks, directions)


def _walks(holes, count, points, directions, residual):
    """Slots, and the jets mu, tau~ before and nu, sigma~ after every mode."""
    scale = jnp.asarray(factorials(count, holes.left_end.dtype))
    degree = 0 if directions is None else 1

    def mode_slots(core, point, direction, jets):
        inputs = project(core, point, direction)
        return jnp.concatenate([project_jets(core, jets, scale), inputs], axis=1)

    slots = each_mode(mode_slots, holes.tucker, points, directions, residual)

    def step(carry, mode):
        jet, gathered_jet = carry
        core, slot = mode
        rows = affine_rows(jet, degree)
        nothing = jnp.zeros((rows.shape[0], count, count, rows.shape[-1]), rows.dtype)
        rows = jnp.concatenate(
            [
                jnp.concatenate([nothing, rows], axis=2),
                jnp.concatenate(
                    [correlation_rows(jet), affine_adjoint_rows(gathered_jet, degree)], axis=2
                ),
            ],
            axis=1,
        )
        after = grow(rows, slot, core)
        return (after[:, :count], after[:, count:]), carry

    start = lambda end: (  # noqa: E731
        first_jet(count, end, slots[0]),
        zero_jet(count, end.shape[0], slots[0]),
    )
    first, last = map(start, holes.ends)
    _, left = sweep(step, first, (arranged(holes.left), slots))
    _, right = sweep(step, last, (arranged_back(holes.right), slots), reverse=True)
    return slots, *left, *right


def _input_outer(mu, tau, nu, sigma, direction) -> Float[Array, "w k a b"]:
    """F: the adjoints of the slots of point and direction."""
    degree = 0 if direction is None else 1
    from_right = correlation_outer(mu, sigma, degree)
    from_left = correlation_outer(nu, tau, degree)
    terms = [a + jnp.swapaxes(b, 1, 2) for a, b in zip(from_right, from_left, strict=True)]
    return jnp.stack(terms, axis=1)

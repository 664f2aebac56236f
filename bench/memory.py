"""What chunking costs: a row-wise sum dense and in chunks, forward and gradient."""

import functools

import jax
import jax.numpy as jnp

import memory
from bench import harness


def _hidden_layer(wide, rows):
    """A sum whose intermediate, (rows, hidden), is far larger than its rows."""
    return jnp.sum(jnp.square(jnp.tanh(rows @ wide) @ wide.T))


@harness.case("memory.map_sum")
def map_sum(smoke: bool):
    width, hidden = (4, 16) if smoke else (64, 2048)
    sizes = [(10_000, "float32"), (10_000, "float64"), (30_000, "float32")]
    for n, dtype in [(40, "float32")] if smoke else sizes:
        rows = jnp.cos(jnp.arange(n * width, dtype=dtype)).reshape(n, width)
        wide = jnp.sin(jnp.arange(width * hidden, dtype=dtype)).reshape(width, hidden) / 8
        fn = functools.partial(_hidden_layer, wide)
        reference = fn(rows)
        for chunk in (None, 16) if smoke else (None, 64, 512):
            for checkpoint in (False, True):
                total = functools.partial(
                    memory.map_sum, fn, chunk_size=chunk, checkpoint=checkpoint
                )
                stages = {"gradient": jax.value_and_grad(total)}
                if not checkpoint:
                    stages = {"forward": total, **stages}
                for stage, job in stages.items():
                    # Two products forward, two backward, and the forward ones again when recomputed.
                    products = {"forward": 2, "gradient": 6 if checkpoint else 4}[stage]
                    yield harness.row(
                        n=n,
                        dtype=dtype,
                        chunk="dense" if chunk is None else chunk,
                        checkpoint=checkpoint,
                        stage=stage,
                        peer="ours",
                        timing=harness.measure(job, rows),
                        error=harness.relative_error(total(rows), reference),
                        against="dense",
                        work={"matmul_flops": products * 2 * n * width * hidden},
                    )

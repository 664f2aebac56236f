"""Other libraries doing the same sums. Each is imported when it is called."""

import numpy as np


def finufft_stein(x, s, h, eps):
    """A Gaussian Stein update by non-uniform FFTs (finufft), in float32.

    Type 1 of the d + 1 charges, times the Gaussian's Fourier series on a box that keeps periodic
    images out of reach, type 2 of the d outputs. Real charges and outputs travel two in a complex
    one, which halves its time. d = 2 or 3.

    Args:
        x, s: particles and scores, (n, d).
        h: bandwidth.
        eps: precision of the transforms, and of the cut-offs in space and frequency.

    Returns:
        A function without arguments that does the whole update and returns phi, (n, d) float32.
    """
    import finufft

    n, d = x.shape
    forward = {2: finufft.nufft2d1, 3: finufft.nufft3d1}[d]
    backward = {2: finufft.nufft2d2, 3: finufft.nufft3d2}[d]
    cut = np.sqrt(2 * np.log(1 / eps))

    def run():
        z = np.ascontiguousarray((x / np.float32(h)).T)
        middle = (z.max(1) + z.min(1)) / 2
        period = (z.max(1) - z.min(1)) + np.float32(cut)
        modes = [2 * int(np.ceil(cut * p / (2 * np.pi))) + 1 for p in period]
        points = [
            ((z[a] - middle[a]) * np.float32(2 * np.pi / period[a])).astype(np.float32)
            for a in range(d)
        ]
        charges = [*(s.T * np.float32(h)), np.ones(n, np.float32)]
        charges += [np.zeros(n, np.float32)] * (len(charges) % 2)
        packed = np.stack(
            [a + 1j * b for a, b in zip(charges[::2], charges[1::2], strict=True)]
        ).astype(np.complex64)
        found = forward(*points, packed, tuple(modes), eps=eps, isign=-1)

        # A real charge's transform at -m is the conjugate of that at m.
        mirrored = np.conj(found[(slice(None), *[slice(None, None, -1)] * d)])
        real, imaginary = (found + mirrored) / 2, (found - mirrored) / 2j
        split = [part for pair in zip(real, imaginary, strict=True) for part in pair]
        waves = np.meshgrid(
            *[
                2 * np.pi / p * np.arange(-(m // 2), m // 2 + 1)
                for p, m in zip(period, modes, strict=True)
            ],
            indexing="ij",
        )
        series = np.prod(np.sqrt(2 * np.pi) / period) * np.exp(-0.5 * sum(w**2 for w in waves))
        outputs = [series * (split[a] - 1j * waves[a] * split[d]) for a in range(d)]
        outputs += [np.zeros_like(outputs[0])] * (d % 2)
        packed = np.stack(
            [a + 1j * b for a, b in zip(outputs[::2], outputs[1::2], strict=True)]
        ).astype(np.complex64)
        field = backward(*points, packed, eps=eps, isign=1)
        rows = [part for one in field for part in (one.real, one.imag)][:d]
        return np.stack(rows, 1) / np.float32(n * h)

    return run


def blackjax_stein(kernel, x, s):
    """A Stein update by blackjax's SVGD: `(update, particles)`, phi = update(particles); score -x."""
    import optax
    from blackjax.vi.svgd import SVGDState, build_kernel, rbf_kernel

    # Its kernel is exp(-|x - y|^2 / length_scale); a step of plain descent of size 1 is -phi.
    scale = 2 * kernel.bandwidth.astype(x.dtype) ** 2
    optimizer = optax.sgd(1.0)
    step = build_kernel(optimizer)

    def update(x):
        state = SVGDState(x, {"length_scale": scale}, optimizer.init(x))
        return step(state, lambda y: -y, rbf_kernel).particles - x

    return update, x


def numpyro_stein(kernel, x, s):
    """As `blackjax_stein`, by numpyro's SteinVI with point guides, for a standard normal model."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.contrib.einstein import SVGD, RBFKernel
    from numpyro.optim import SGD

    square = 2 * kernel.bandwidth.astype(x.dtype) ** 2
    dimension = x.shape[1]

    class FixedBandwidth(RBFKernel):
        def compute(self, *_):
            return lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2) / square)

    def model():
        normal = numpyro.distributions.Normal(jnp.zeros(dimension, x.dtype), jnp.ones((), x.dtype))
        numpyro.sample("x", normal.to_event(1))

    stein = SVGD(model, SGD(1.0), FixedBandwidth(), num_stein_particles=x.shape[0])
    start = stein.init(jax.random.key(0))
    (name,) = stein.get_params(start)

    def update(x):
        state = start._replace(optim_state=stein.optim.init({name: x}))
        return stein.get_params(stein.update(state)[0])[name] - x

    return update, x


def pykeops_stein(kernel, x, s):
    """A Stein update by a symbolic sum of pykeops, on NumPy arrays: `(update, particles)`."""
    from pykeops.numpy import LazyTensor

    h2 = float(kernel.bandwidth) ** 2
    x, s = np.asarray(x), np.asarray(s)
    charges = np.concatenate([s - x / x.dtype.type(h2), np.ones_like(x[:, :1])], axis=1)

    def update(x):
        xi, xj = LazyTensor(x[:, None, :]), LazyTensor(x[None, :, :])
        k = (-((xi - xj) ** 2).sum(-1) / (2 * h2)).exp()
        y = k @ charges
        return (y[:, :-1] + x / x.dtype.type(h2) * y[:, -1:]) / x.dtype.type(len(x))

    return update, x

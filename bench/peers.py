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

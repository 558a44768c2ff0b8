"""What corruptions are built from: filtering, resampling and smooth random fields, on pixels in 0..1, (h, w, 3)."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def filtered(pixels: Floats, kernel: Floats) -> Floats:
    """Convolution with a kernel of sum 1, borders mirrored; by FFT."""
    rows, columns = ((n - 1) // 2 for n in kernel.shape)
    pad = [(rows, rows), (columns, columns), (0, 0)][: pixels.ndim]
    mode = "reflect" if rows < pixels.shape[0] and columns < pixels.shape[1] else "symmetric"
    wide = np.pad(pixels, pad, mode=mode)  # type: ignore[call-overload]
    flat = wide.reshape(*wide.shape[:2], -1)
    spectrum = np.fft.rfft2(flat, axes=(0, 1)) * np.fft.rfft2(kernel, s=wide.shape[:2])[..., None]
    whole = np.fft.irfft2(spectrum, s=wide.shape[:2], axes=(0, 1))
    return whole[2 * rows :, 2 * columns :].reshape(pixels.shape)


def gaussian(sigma: float) -> Floats:
    """A Gaussian kernel."""
    reach = max(1, math.ceil(3 * sigma))
    x = np.exp(-0.5 * (np.arange(-reach, reach + 1) / max(sigma, 1e-6)) ** 2)
    return np.outer(x, x) / x.sum() ** 2


def disk(radius: float) -> Floats:
    """A disk with a smooth edge, so that fractions of a pixel count: an out-of-focus lens."""
    reach = max(1, math.ceil(radius))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    weight = np.clip(radius + 0.5 - np.hypot(y, x), 0, 1)
    return np.asarray(weight / weight.sum())


def streak(length: float, angle: float) -> Floats:
    """A line through the center with a smooth edge: a camera that moves."""
    reach = max(1, math.ceil(length / 2))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    weight = np.clip(length / 2 + 0.5 - abs(along), 0, 1) * np.clip(1 - abs(across), 0, 1)
    return np.asarray(weight / weight.sum())


def sampled(pixels: Floats, rows: Floats, columns: Floats) -> Floats:
    """Pixels at fractional places, bilinear, borders mirrored."""
    rows, columns = (_mirrored(at, n) for at, n in zip((rows, columns), pixels.shape))
    y, x = np.floor(rows).astype(int), np.floor(columns).astype(int)
    dy, dx = (rows - y)[..., None], (columns - x)[..., None]
    below, right = np.minimum(y + 1, pixels.shape[0] - 1), np.minimum(x + 1, pixels.shape[1] - 1)
    top = pixels[y, x] * (1 - dx) + pixels[y, right] * dx
    return np.asarray(top * (1 - dy) + (pixels[below, x] * (1 - dx) + pixels[below, right] * dx) * dy)


def _mirrored(at: Floats, n: int) -> Floats:
    span = max(n - 1, 1)
    return np.clip(span - abs(np.mod(at, 2 * span) - span), 0, n - 1)


def clouds(shape: tuple[int, int], rng: np.random.Generator, *, roughness: float) -> Floats:
    """A random field in 0..1 whose amplitude falls with frequency by a power: smooth for 2, rough for 1."""
    noise = np.fft.rfft2(rng.standard_normal(shape))
    y, x = np.fft.fftfreq(shape[0])[:, None] * shape[0], np.fft.rfftfreq(shape[1])[None] * shape[1]
    frequency = np.hypot(y, x)
    frequency[0, 0] = 1
    field = np.fft.irfft2(noise / frequency**roughness, s=shape)
    low, high = field.min(), field.max()
    return np.asarray((field - low) / max(high - low, 1e-12))

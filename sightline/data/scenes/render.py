"""Render scenes: many at once, each object only in the window that it covers."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import Ints, generator
from sightline.data.images import Pixels
from sightline.data.scenes import shapes, textures
from sightline.data.scenes.parameters import SceneParameters
from sightline.data.scenes.shapes import Field

TAU = np.float32(2 * np.pi)
REACH = 1.2  # a window extends beyond the radius of the object, for its soft edge and shadow
GRAIN = 640  # side of the noise image of which every scene uses a crop
WORK = 1 << 19  # pixels drawn at a time, so that arrays fit into the cache


@dataclass(frozen=True)
class Patch:
    """One drawn object: its window, its coverage of each pixel, its colors."""

    scene: int
    slot: int
    upper: int
    left: int
    cover: Field  # (s, s), coverage by the object
    keep: Field  # (s, s), factor of what is behind: less than 1 - cover in the shadow
    paint: Field  # (3, s, s), colors times cover


def render(params: SceneParameters, size: int) -> Pixels:
    """The images (n, size, size, 3)."""
    step = max(1, min(128, WORK // (size * size)))
    n = len(params.target)
    blocks = [_render_block(params.take(slice(i, i + step)), size)[0] for i in range(0, n, step)]
    return np.concatenate(blocks)


def render_all(params: SceneParameters, size: int) -> tuple[Pixels, list[Patch]]:
    """The images of scenes, and all of their objects, those of a scene from back to front."""
    return _render_block(params, size)


def render_one(params: SceneParameters, size: int) -> tuple[Pixels, list[Patch]]:
    """The image of a single scene, and its objects from back to front."""
    pixels, patches = _render_block(params, size)
    return pixels[0], patches


def _render_block(params: SceneParameters, size: int) -> tuple[Pixels, list[Patch]]:
    canvas = _background(params, size)
    patches = _patches(params, size)
    for p in patches:
        side = p.cover.shape[0]
        window = canvas[p.scene, :, p.upper : p.upper + side, p.left : p.left + side]
        window *= p.keep
        window += p.paint
    return _to_pixels(params, canvas, size), patches


def _axis(size: int) -> Field:
    return (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)


def _background(params: SceneParameters, size: int) -> Field:
    """Waves summed by a matrix product: sin(a + b) = sin a cos b + cos a sin b, a along x and b along y."""
    amplitude, across, down, phase = (params.waves[..., i].astype(np.float32) for i in range(4))
    axis = _axis(size)
    a, b = TAU * across[..., None] * axis, TAU * (down[..., None] * axis + phase[..., None])
    fade = amplitude[..., None]
    field = np.matmul((fade * np.cos(b)).transpose(0, 2, 1), np.sin(a)) + np.matmul(
        (fade * np.sin(b)).transpose(0, 2, 1), np.cos(a)
    )
    sharp = np.minimum(params.sharpness, size / 12).astype(np.float32)
    share = np.clip(field * sharp[:, None, None] + 0.5, 0, 1)
    c = params.colors.astype(np.float32)[..., None, None]
    rise = np.clip(0.5 + 0.25 * field, 0, 1)
    canvas = c[:, 0] + share[:, None] * (c[:, 1] - c[:, 0])
    canvas += (0.35 * rise)[:, None] * (c[:, 2] - canvas)
    if params.horizon.any():
        _add_sky(canvas, params, axis)
    return canvas


def _add_sky(canvas: Field, params: SceneParameters, axis: Field) -> None:
    """A sky above the horizon that is paler towards it; the ground below fades into the distance."""
    height = params.horizon.astype(np.float32)[:, None]
    sky = params.colors[:, 2].astype(np.float32)[:, :, None, None]
    pale = 0.5 * sky + 0.5 * 235
    up = np.clip((height - axis) * 60, 0, 1)[:, None, :, None]
    near = np.clip((axis - height) / (1 - height), 0, 1)[:, None, :, None]
    depth = np.clip(axis / height, 0, 1)[:, None, :, None] ** 2
    canvas += np.exp(-4 * near) * (pale - canvas) * (1 - up)
    canvas += up * (sky + depth * (pale - sky) - canvas)


def _patches(params: SceneParameters, size: int) -> list[Patch]:
    """All objects, each in its window. Objects of one window size are drawn together, then sorted back."""
    o = params.objects
    scenes, slots = np.nonzero(o.present)
    reach = o.radius[scenes, slots] * REACH * size
    grain = max(4, size // 8)
    sides = np.minimum((np.ceil((2 * reach + 2) / grain) * grain).astype(np.int64), size)
    kinds = o.shape[scenes, slots]
    order = np.lexsort((kinds, sides))
    patches: list[Patch] = []
    for side in np.unique(sides):
        chosen = order[sides[order] == side]
        patches += _draw(params, scenes[chosen], slots[chosen], side=int(side), size=size)
    return sorted(patches, key=lambda p: (p.scene, p.slot))


def _draw(params: SceneParameters, scenes: Ints, slots: Ints, *, side: int, size: int) -> list[Patch]:
    """Objects of one window size, sorted by shape."""
    o = params.objects

    def of(values: NDArray) -> Field:
        return values[scenes, slots].astype(np.float32)

    radius = of(o.radius) * size  # in pixels from here on
    x, y = of(o.x) * size, of(o.y) * size
    left = np.clip(np.rint(x - side / 2), 0, size - side).astype(np.int64)
    upper = np.clip(np.rint(y - side / 2), 0, size - side).astype(np.int64)
    grid = np.arange(side, dtype=np.float32) + np.float32(0.5)
    dx = ((left[:, None] + grid - x[:, None]) / radius[:, None]).astype(np.float32)[:, None, :]
    dy = ((upper[:, None] + grid - y[:, None]) / radius[:, None]).astype(np.float32)[:, :, None]
    cos, sin = (f(of(o.angle))[:, None, None] for f in (np.cos, np.sin))
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    outline = _outline(u, v, o.shape[scenes, slots])
    cover = np.clip(np.float32(0.5) - outline * radius[:, None, None], 0, 1)
    paint = _color(params, scenes, slots, u=u, v=v, radius=radius)
    light = params.light.astype(np.float32)[scenes]
    lit = light[:, :1, None] * dx + light[:, 1:, None] * dy
    shade = 1 + lit
    shade *= np.clip(1 - (outline + np.float32(0.14)) * np.float32(2.2), 0.62, 1)  # darker towards the outline
    paint *= (shade * cover)[:, None]
    shadow = np.clip(
        np.float32(0.5) - (outline + lit) * 3, 0, np.float32(0.5)
    )  # soft, and longer on the side away from the light
    inward = [np.clip((np.float32(REACH) - np.abs(d)) * 5, 0, 1) for d in (dx, dy)]  # fades out before the window ends
    keep = (1 - cover) * (1 - shadow * (inward[0] * inward[1]))
    return [
        Patch(int(s), int(k), int(t), int(l), c, b, p)
        for s, k, t, l, c, b, p in zip(scenes, slots, upper, left, cover, keep, paint)
    ]


def _outline(u: Field, v: Field, kinds: Ints) -> Field:
    """Signed distances. The objects are sorted by shape, so each shape is one slice."""
    outline = np.empty_like(u)
    for kind in np.unique(kinds):
        first, last = np.searchsorted(kinds, (kind, kind + 1))
        outline[first:last] = shapes.DRAW[shapes.SHAPES[kind]](u[first:last], v[first:last])
    return outline


def _color(params: SceneParameters, scenes: Ints, slots: Ints, *, u: Field, v: Field, radius: Field) -> Field:
    """The two colors of each object, mixed by its texture, with haze."""
    o = params.objects
    scale = o.scale[scenes, slots].astype(np.float32)[:, None, None]
    phase = o.phase[scenes, slots].astype(np.float32)[..., None, None]
    kinds = o.texture[scenes, slots]
    share = np.zeros_like(u)
    for kind in np.unique(kinds):
        if textures.TEXTURES[kind] == "plain":
            continue
        at = np.flatnonzero(kinds == kind)
        centered = textures.TEXTURES[kind] in ("ringed", "graded")  # these are fixed to the center of the object
        move = 0 * phase[at] if centered else phase[at]
        s, t = u[at] * scale[at] + move[:, 0], v[at] * scale[at] + move[:, 1]
        share[at] = textures.DRAW[textures.TEXTURES[kind]](s, t, scale[at] / radius[at][:, None, None])
    first, second = (c[scenes, slots].astype(np.float32)[..., None, None] for c in (o.first, o.second))
    color = first + share[:, None] * (second - first)
    haze = o.haze[scenes, slots].astype(np.float32)
    if haze.any():
        pale = 0.5 * params.colors[scenes, 2].astype(np.float32)[..., None, None] + 0.5 * 235
        color += haze[:, None, None, None] * (pale - color)
    return color


@cache
def _grain() -> Field:
    return generator("grain").standard_normal((3, GRAIN, GRAIN)).astype(np.float32)


def _to_pixels(params: SceneParameters, canvas: Field, size: int) -> Pixels:
    """Apply light, style and grain, and convert to uint8."""
    axis = _axis(size) - np.float32(0.5)
    light = params.light.astype(np.float32)
    canvas *= (1 + light[:, :1, None] * axis + light[:, 1:, None] * axis[:, None])[:, None]
    if params.style != "plain":
        STYLES[params.style](canvas, axis)
    amplitude, place = params.grain[:, 0].astype(np.float32), params.grain[:, 1:]
    corners = (place[:, :2] * (GRAIN - size)).astype(np.int64)
    for i, (y, x) in enumerate(corners):
        canvas[i] += amplitude[i] * _grain()[:, y : y + size, x : x + size]
    np.clip(canvas, 0, 255, out=canvas)
    canvas += np.float32(0.5)
    return np.ascontiguousarray(canvas.astype(np.uint8).transpose(0, 2, 3, 1))


def _microscope(canvas: Field, axis: Field) -> None:
    """A stained slide under a microscope: violet on cream, dark outside the round field of view."""
    gray = canvas.mean(axis=1, keepdims=True) / 255
    low, high = (np.array(c, dtype=np.float32).reshape(3, 1, 1) for c in ((92, 30, 120), (250, 226, 232)))
    field_of_view = np.clip((0.52 - np.sqrt(axis**2 + axis[:, None] ** 2)) * 24, 0.05, 1)
    canvas[...] = (low + gray * (high - low)) * field_of_view


def _aerial(canvas: Field, axis: Field) -> None:
    """Seen from far above: flat light, low contrast, earth colors."""
    gray = canvas.mean(axis=1, keepdims=True)
    earth = np.array((1.0, 0.98, 0.8), dtype=np.float32).reshape(3, 1, 1)
    canvas[...] = 0.35 * canvas + (0.3 * gray + 42) * earth


STYLES = {"microscope": _microscope, "aerial": _aerial}

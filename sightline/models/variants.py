"""The table of variants and their names: `vit-b16`, `bit-r50x1`, `r50-vit-b16`, `mixer-b16`."""

import difflib
import fnmatch
import re
from typing import Any

from sightline.models.bit import BiTConfig
from sightline.models.hybrid import HybridConfig
from sightline.models.mixer import MixerConfig
from sightline.models.vit import ViTConfig

Config = ViTConfig | BiTConfig | HybridConfig | MixerConfig

# width, depth, heads, mlp_width. Nano, micro and mini are our own, for 32-pixel images and a minute to an hour on two
# cores; they use the exact GELU, which a CPU computes several times faster than the tanh formula.
VIT = {
    "nano": (64, 6, 4, 128),
    "micro": (128, 6, 4, 256),
    "mini": (256, 7, 4, 512),  # the shape of ViT-Lite-7 (Hassani et al. 2021)
    "ti": (192, 12, 3, 768),
    "s": (384, 12, 6, 1536),
    "b": (768, 12, 12, 3072),  # ViT table 1, as l and h
    "l": (1024, 24, 16, 4096),
    "h": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),  # Zhai et al. 2021, table 2, as G
    "G": (1664, 48, 16, 8192),
}
SMALL = ("nano", "micro", "mini")

# width, depth, token_width, mlp_width. Nano, micro and mini are our own: the multiply-accumulates of the ViTs of these
# names at 32 pixels and patch 4, within 6 %, and the paper's four channels of the MLP for each of the width.
MIXER = {
    "nano": (64, 6, 64, 256),
    "micro": (128, 6, 64, 512),
    "mini": (256, 7, 128, 1024),
    "s": (512, 8, 256, 2048),  # Mixer table 1, as b, l and h
    "b": (768, 12, 384, 3072),
    "l": (1024, 24, 512, 4096),
    "h": (1280, 32, 640, 5120),
}

# BiT: residual units per stage
BIT = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
BIT_SMALL: dict[str, dict[str, Any]] = {
    "nano": {"units": (1, 1, 1), "width_factor": 0.5, "stem": "3x3/2"},
    "micro": {"units": (2, 2, 2), "width_factor": 0.5, "stem": "3x3/1"},
    "mini": {"units": (2, 2, 2), "width_factor": 1.0, "stem": "3x3/1"},
    "basic": {"units": (1, 1, 1), "width_factor": 1.0, "stem": "3x3/2", "unit": "basic"},
}

# Hybrids: units for stride 32; for stride 16 the last stage's units move into the one before (ViT, section 4.1)
HYBRID = {26: (2, 2, 2, 2), **BIT}
HYBRID_SMALL = {(8, 4): (2,), (14, 8): (2, 2)}  # (depth, stride) -> units, at half width
HYBRID_BASIC: dict[str, Any] = {"unit": "basic", "stem": "3x3/2"}  # of r6: as bit-basic without its last stage

LISTED = (
    *(f"vit-{s}{p}" for s in SMALL for p in (4, 8)),
    *("vit-ti16", "vit-s32", "vit-s16", "vit-b32", "vit-b16", "vit-b8", "vit-l32", "vit-l16", "vit-h14"),
    *("vit-g14", "vit-G14"),
    *(f"bit-{s}" for s in BIT_SMALL),
    *("bit-r50x1", "bit-r50x3", "bit-r101x1", "bit-r101x3", "bit-r152x2", "bit-r152x4", "bit-r200x3"),
    *("r8-vit-nano4", "r8-vit-micro4", "r14-vit-micro8", "r6-vit-nano4", "conv-vit-nano4", "conv-vit-micro4"),
    *("r-vit-ti16", "r26-vit-s32", "r26-vit-b32", "r50-vit-b32", "r50-vit-b16", "r50-vit-l32", "r50-vit-l16"),
    *("mixer-nano4", "mixer-nano8", "mixer-micro4", "mixer-micro8", "mixer-mini4"),
    *("mixer-s32", "mixer-s16", "mixer-b32", "mixer-b16", "mixer-l32", "mixer-l16", "mixer-h14"),
)


def names(glob: str = "*") -> list[str]:
    """The listed names that match a glob; many others can be built (any patch, any width).

    >>> sl.models.names("vit-l*")
    ['vit-l32', 'vit-l16']
    """
    return [name for name in LISTED if fnmatch.fnmatchcase(name, glob)]


def config(name: str, **changes: Any) -> Config:
    """The configuration of a named model, with fields changed; the papers' names (`ViT-B/16`, `R50+ViT-B/16`) work too.

    >>> sl.models.config("vit-b16", pool="gap").prefix
    0
    """
    plain = canonical(name)
    if found := re.fullmatch(r"vit-([a-zA-Z]+?)(\d+)", plain):
        size, patch = found.groups()
        if size in VIT:
            return _vit(size, int(patch), changes)
    if (found := re.fullmatch(r"mixer-([a-z]+?)(\d+)", plain)) and found[1] in MIXER:
        return _mixer(found[1], int(found[2]), changes)
    if found := re.fullmatch(r"bit-r(\d+)x(\d+(?:\.5)?)", plain):
        depth, width = int(found[1]), float(found[2])
        if depth in BIT:
            return _bit({"units": BIT[depth], "width_factor": width, **changes})
    if plain.startswith("bit-") and plain[4:] in BIT_SMALL:
        return _bit({**BIT_SMALL[plain[4:]], "size": 32, **changes})
    if (found := re.fullmatch(r"conv-vit-([a-zA-Z]+?)(\d+)", plain)) and found[1] in VIT:
        stem = {"stem": "3x3/2+3x3/2", **changes}  # two convolutions in place of the patches (Xiao et al. 2021)
        return _hybrid(found[1], (), int(found[2]), 1.0, stem)
    if found := re.fullmatch(r"r(\d*)-vit-([a-zA-Z]+?)(\d+)", plain):
        if (found[1], found[3]) == ("6", "4") and found[2] in VIT:
            return _hybrid(found[2], (1, 1), 4, 1.0, {**HYBRID_BASIC, **changes})
        backbone = _backbone(found[1], found[2], int(found[3]))
        if backbone is not None and found[2] in VIT:
            return _hybrid(found[2], *backbone, changes)
    raise ValueError(f"There is no model {name!r}. {_suggestion(plain)}")


def canonical(name: str) -> str:
    """The papers' names to ours: `R50+ViT-B/16` is r50-vit-b16, `ViT-B_16` is vit-b16. Case matters only for g."""
    dashed = re.sub(r"[+_/\s]+", "-", name.strip())
    joined = re.sub(r"(?i)(?<=vit-|xer-)([a-z]+)-(?=\d)", r"\1", dashed)
    giant = re.search(r"(?i:vit)-G\d", joined) is not None
    return re.sub(r"(?<=vit-)g(?=\d)", "G", joined.lower()) if giant else joined.lower()


def _vit(letter: str, patch: int, changes: dict[str, Any]) -> ViTConfig:
    width, depth, heads, mlp_width = VIT[letter]
    start: dict[str, Any] = {"width": width, "depth": depth, "heads": heads, "mlp_width": mlp_width, "patch": patch}
    start |= {"size": 32, "gelu": "erf"} if letter in SMALL else {"size": _nearest_size(224, patch)}
    return ViTConfig(**_check_fields(ViTConfig, {**start, **changes}))


def _mixer(letter: str, patch: int, changes: dict[str, Any]) -> MixerConfig:
    width, depth, token_width, mlp_width = MIXER[letter]
    start: dict[str, Any] = {"width": width, "depth": depth, "token_width": token_width, "mlp_width": mlp_width}
    start |= {"size": 32, "gelu": "erf"} if letter in SMALL else {"size": _nearest_size(224, patch)}
    return MixerConfig(**_check_fields(MixerConfig, {"patch": patch, **start, **changes}))


def _nearest_size(size: int, patch: int) -> int:
    """The nearest size that the patch size divides, so that `vit-b13` builds without `size`."""
    return max(1, round(size / patch)) * patch


def _bit(fields: dict[str, Any]) -> BiTConfig:
    return BiTConfig(**_check_fields(BiTConfig, fields))


def _backbone(depth: str, size: str, stride: int) -> tuple[tuple[int, ...], int, float] | None:
    """Units, total stride and width factor of a hybrid's name, or None."""
    if not depth:  # only the stem, with 8 x 8 patches: stride 32, although the released name says 16
        return ((), 32, 1.0) if (size, stride) == ("ti", 16) else None
    if (int(depth), stride) in HYBRID_SMALL:
        return HYBRID_SMALL[int(depth), stride], stride, 0.5
    if int(depth) not in HYBRID or stride not in (16, 32):
        return None
    units = HYBRID[int(depth)]
    return (units if stride == 32 else (*units[:2], units[2] + units[3])), stride, 1.0


def _hybrid(letter: str, units: tuple[int, ...], stride: int, width: float, changes: dict[str, Any]) -> HybridConfig:
    own = (set(HybridConfig.__dataclass_fields__) - {"vit"}) & set(changes)
    vit = _vit(letter, stride, {k: v for k, v in changes.items() if k not in own})
    return HybridConfig(vit=vit, **{"units": units, "width_factor": width, **{k: changes[k] for k in own}})


def _check_fields(
    kind: type[ViTConfig] | type[BiTConfig] | type[MixerConfig], fields: dict[str, Any]
) -> dict[str, Any]:
    known = list(kind.__dataclass_fields__)
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3) or known
            raise ValueError(f"{kind.__name__} has no field {name!r}. Did you mean {', '.join(close)}?")
    return fields


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, LISTED, n=3, cutoff=0.5)
    hint = f"Did you mean {', '.join(close)}? " if close else ""
    return hint + "`sightline models` lists them; any patch (vit-b8) and width (bit-r50x2) can be built."

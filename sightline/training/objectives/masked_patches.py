"""Masked patch prediction (ViT paper, appendix B.1.2)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.data.draws import Draws, Ints
from sightline.models.vit import ViT
from sightline.training.objectives.patches import (
    PatchObjective,
    check_share,
    final_tokens,
    gather_tokens,
    patch_count,
    patch_pixels,
    patch_size,
    shuffle_patches,
)

Target = Literal["color", "color-4x4", "pixels"]
MASKED, REPLACED = 0.8, 0.1  # of the corrupted patches; the rest stays as it is (B.1.2)
LEVELS = 8  # of each color: 3 bits, so 512 colors (B.1.2)


@dataclass(frozen=True)
class Corruption:
    """How the patches of each image are corrupted, by their indices; every image has equally many of each kind."""

    masked: Ints  # (b, m): the mask token replaces them
    replaced: Ints  # (b, r): another patch of the same image replaces them,
    by: Ints  # (b, r): this one
    unchanged: Ints  # (b, u): left as they are, but predicted too

    @property
    def patches(self) -> Ints:
        """Every corrupted patch, (b, k)."""
        return np.concatenate([self.masked, self.replaced, self.unchanged], axis=1)


def draw_corruption(patches: int, share: float, draws: Draws) -> Corruption:
    """round(share x patches) patches of each image: 80 % masked, 10 % replaced, 10 % unchanged (B.1.2).

    >>> c = draw_corruption(64, 0.5, Draws(0, np.arange(2)))
    >>> c.masked.shape, c.replaced.shape, c.unchanged.shape
    ((2, 26), (2, 3), (2, 3))
    """
    count = round(share * patches)
    masked, replaced = round(MASKED * count), round(REPLACED * count)
    order = shuffle_patches(patches, draws)[:, :count]
    here = order[:, masked : masked + replaced]
    other = draws.choices("other patch", patches - 1, replaced)
    return Corruption(
        masked=order[:, :masked],
        replaced=here,
        by=other + (other >= here),  # any patch but itself
        unchanged=order[:, masked + replaced :],
    )


def color_classes(pixels: Float[Tensor, "... 3 p q"], parts: int = 1) -> Int[Tensor, "... s"]:
    """Mean color of each of parts x parts pieces of a patch, 3 bits per channel: s classes from 0 to 511, red first.

    Pixels lie between 0 and 1; values outside, left by normalizing and back, take the nearest level.
    """
    means = F.adaptive_avg_pool2d(pixels.flatten(0, -4), parts)
    levels = (means * LEVELS).floor().clamp(0, LEVELS - 1).long()
    classes = (levels[:, 0] * LEVELS + levels[:, 1]) * LEVELS + levels[:, 2]
    return classes.flatten(1).unflatten(0, pixels.shape[:-3])


class MaskedPatches(PatchObjective):
    """Masked patch prediction around a ViT or a hybrid: `forward` returns the loss, `.model` is the model itself.

    Part of the patch embeddings is corrupted; each corrupted patch is predicted from its own output token: its mean
    color (512 classes), 4 x 4 colors, or its normalized pixels (mean squared error). In a hybrid a patch is a cell of
    the backbone's map, and its target the pixels of that cell.

    The predictor starts at zero, as heads do, so the first loss is ln 512 for colors; the mask token is drawn from a
    normal distribution with std 0.02, from `seed`.

    >>> import numpy as np, torch
    >>> from sightline.data.draws import Draws
    >>> objective = sl.training.MaskedPatches(sl.build("vit-nano4"))
    >>> loss = objective(torch.zeros(2, 3, 32, 32), None, Draws(0, np.arange(2)))
    >>> round(loss.item(), 3)
    6.238
    """

    def __init__(self, model: nn.Module, *, corrupt: float = 0.5, target: Target = "color", seed: int = 0):
        super().__init__()
        if not isinstance(model, ViT):
            raise ValueError(
                f"Masked patch prediction needs patches: a ViT or a hybrid; got a {type(model).__name__}, which "
                "--task lejepa takes."
            )
        check_share(model, corrupt)
        if target not in (known := ("color", "color-4x4", "pixels")):
            raise ValueError(f"target={target!r}: expected one of {', '.join(known)}.")
        if target != "pixels" and len(model.image.mean) != 3:
            raise ValueError(
                f"target={target!r} needs images of three colors; this model takes {len(model.image.mean)}."
            )
        self.model, self.corrupt, self.target = model, corrupt, target
        p, q = patch_size(model)
        colors = LEVELS**3
        outputs = {"color": colors, "color-4x4": 16 * colors, "pixels": len(model.image.mean) * p * q}[target]
        like = model.embed.proj.weight
        token = 0.02 * torch.randn(model.encoder_config.width, generator=torch.Generator().manual_seed(seed))
        self.mask_token = nn.Parameter(token.to(like))
        self.predictor = nn.Linear(model.encoder_config.width, outputs, device=like.device, dtype=like.dtype)
        nn.init.zeros_(self.predictor.weight)
        nn.init.zeros_(self.predictor.bias)

    def forward(self, images: Tensor, labels: Tensor | None, draws: Draws) -> Float[Tensor, ""]:
        """Mean loss over the corrupted patches; `images` are normalized, `labels` are ignored."""
        drawn = draw_corruption(patch_count(self.model), self.corrupt, draws)
        tokens = self.encode(self.corrupt_patches(self.model.stem(images), drawn))
        at = torch.from_numpy(drawn.patches).to(images.device)
        predicted = self.predictor(gather_tokens(tokens, at))
        wanted = self.targets(images)[torch.arange(len(images), device=images.device)[:, None], at]
        if self.target == "pixels":
            return F.mse_loss(predicted.float(), wanted)
        return F.cross_entropy(predicted.unflatten(-1, (-1, LEVELS**3)).flatten(0, -2).float(), wanted.flatten())

    def corrupt_patches(self, patches: Float[Tensor, "b n d"], drawn: Corruption) -> Float[Tensor, "b n d"]:
        """The embeddings with the mask token, or with another patch, in place of the corrupted ones."""
        row = torch.arange(len(patches), device=patches.device)[:, None]
        masked, replaced, by = (
            torch.from_numpy(a).to(patches.device) for a in (drawn.masked, drawn.replaced, drawn.by)
        )
        out = patches.clone()
        out[row, replaced] = patches[row, by]
        out[row, masked] = self.mask_token.to(patches.dtype)
        return out

    def encode(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Output tokens of the patches."""
        model = self.model
        return final_tokens(model, model.run_blocks(model.sequence(patches)))[:, model.encoder_config.prefix :]

    def targets(self, images: Float[Tensor, "b c y x"]) -> Tensor:
        """The target of every patch: (b, n, 1 or 16) classes, or (b, n, c p q) pixels."""
        if self.target == "pixels":
            return patch_pixels(images, self.model.encoder_config.grid).flatten(2).float()
        spec = self.model.image
        mean, std = (torch.tensor(v, device=images.device)[:, None, None] for v in (spec.mean, spec.std))
        colors = patch_pixels(images.float() * std + mean, self.model.encoder_config.grid)
        return color_classes(colors, 1 if self.target == "color" else 4)

"""What both masked objectives use: random orders of patches, their pixels, their tokens.

Every random choice comes image by image from `Draws`, never from torch's random stream: an image's masks depend only on
its number in the global batch, not on how the batch is split over devices and passes.
"""

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.data.draws import Draws, Ints
from sightline.models import checks
from sightline.models.vit import ViT


def shuffle_patches(patches: int, draws: Draws) -> Ints:
    """A random order of the patches for each image, (b, n)."""
    return np.argsort(draws.many("patch order", patches), axis=1, kind="stable")


def patch_pixels(images: Float[Tensor, "b c y x"], grid: tuple[int, int]) -> Float[Tensor, "b n c p q"]:
    """The pixels of every cell of a grid, in raster order."""
    return rearrange(images, "b c (y p) (x q) -> b (y x) c p q", y=grid[0], x=grid[1])


def gather_tokens(tokens: Float[Tensor, "b n d"], at: Int[Tensor, "b k"]) -> Float[Tensor, "b k d"]:
    """The tokens of each image at the given positions."""
    return tokens.gather(1, at[..., None].expand(-1, -1, tokens.shape[-1]))


def unused_parameters(model: ViT) -> tuple[str, ...]:
    """Globs of the parameters that only classification uses, for `Recipe.frozen`."""
    parts = {"pool": model.pool, "pre_logits": model.pre_logits, "head": model.head, "head_distill": model.head_distill}
    return tuple(f"{name}.*" for name, part in parts.items() if part is not None and list(part.parameters()))


def final_tokens(model: ViT, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
    """Tokens after the final norm, also for a model that pools before it."""
    return model.norm(tokens) if model.encoder_config.final_norm == "pooled" else tokens


def mean_patch(model: ViT, images: Tensor) -> Float[Tensor, "b d"]:
    """The mean of the patches of each image after the final norm; nothing is hidden."""
    return final_tokens(model, model.encode(images))[:, model.encoder_config.prefix :].mean(1)


def patch_size(model: ViT) -> tuple[int, int]:
    """Pixels of one patch; in a hybrid, of one cell of the backbone's map."""
    (y, x), (down, across) = checks.pair(model.config.size), model.encoder_config.grid
    return y // down, x // across


def patch_count(model: ViT) -> int:
    return model.encoder_config.tokens - model.encoder_config.prefix


def check_share(model: ViT, corrupt: float) -> None:
    """Refuse a share of the patches that leaves none of them, or all."""
    patches = patch_count(model)
    if not 0 < round(corrupt * patches) < patches:
        raise ValueError(f"corrupt={corrupt} of {patches} patches: expected at least one, and at least one left.")


class PatchObjective(nn.Module):
    """What the masked objectives share: a loss around a ViT that trains its patches, and not its classifier."""

    model: ViT

    @property
    def unused(self) -> tuple[str, ...]:
        """Globs of the model's parameters that this loss does not use."""
        return unused_parameters(self.model)

    def represent(self, images: Tensor) -> Float[Tensor, "b d"]:
        """What the loss trains of each image: the mean of its patches."""
        return mean_patch(self.model, images)

"""Learning without labels: masked patch prediction (Dosovitskiy et al. 2020, B.1.2) and masked autoencoders.

Every choice comes row by row from `Draws`, never from torch's random stream: an image's masks depend on its number in
the global batch alone, not on how the batch was split over devices and micro-batches.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.data.draws import Draws, Ints
from sightline.models import checks
from sightline.models.hybrid import Hybrid
from sightline.models.initialize import xavier_uniform_
from sightline.models.layers import Attention, Mlp
from sightline.models.positions import sincos_2d
from sightline.models.vit import Block, ViT, ViTConfig

Target = Literal["color", "color-4x4", "pixels"]
MASKED, REPLACED = 0.8, 0.1  # of the corrupted patches; the rest stays as it is (B.1.2)
LEVELS = 8  # of each color: 3 bits, so 512 colors (B.1.2)


@dataclass(frozen=True)
class Corruption:
    """What happens to the patches of each image, as numbers of patches; every row has equally many of each."""

    masked: Ints  # (b, m): the mask token takes their place
    replaced: Ints  # (b, r): another patch of the image does,
    by: Ints  # (b, r): this one
    unchanged: Ints  # (b, u): foretold all the same

    @property
    def all(self) -> Ints:
        """Every corrupted patch, (b, k)."""
        return np.concatenate([self.masked, self.replaced, self.unchanged], axis=1)


def corruption(patches: int, share: float, draws: Draws) -> Corruption:
    """round(share x patches) patches of each image: 80 % masked, 10 % replaced, 10 % unchanged (B.1.2).

    >>> c = corruption(64, 0.5, Draws(0, np.arange(2)))
    >>> c.masked.shape, c.replaced.shape, c.unchanged.shape
    ((2, 26), (2, 3), (2, 3))
    """
    count = round(share * patches)
    masked, replaced = round(MASKED * count), round(REPLACED * count)
    order = shuffled_patches(patches, draws)[:, :count]
    here = order[:, masked : masked + replaced]
    other = draws.choices("other patch", patches - 1, replaced)
    return Corruption(
        masked=order[:, :masked],
        replaced=here,
        by=other + (other >= here),  # any patch but itself
        unchanged=order[:, masked + replaced :],
    )


def shuffled_patches(patches: int, draws: Draws) -> Ints:
    """The patches of each image in an order of its own, (b, n)."""
    return np.argsort(draws.many("patch order", patches), axis=1, kind="stable")


def patch_pixels(images: Float[Tensor, "b c y x"], grid: tuple[int, int]) -> Float[Tensor, "b n c p q"]:
    """The pixels of every cell of a grid, in raster order."""
    return rearrange(images, "b c (y p) (x q) -> b (y x) c p q", y=grid[0], x=grid[1])


def color_classes(pixels: Float[Tensor, "... 3 p q"], parts: int = 1) -> Int[Tensor, "... s"]:
    """Mean color of each of parts x parts pieces of a patch, 3 bits a channel: s numbers of 0 .. 511, red first.

    Pixels lie between 0 and 1; what normalizing and back left outside counts as the nearest level.
    """
    means = F.adaptive_avg_pool2d(pixels.flatten(0, -4), parts)
    levels = (means * LEVELS).floor().clamp(0, LEVELS - 1).long()
    classes = (levels[:, 0] * LEVELS + levels[:, 1]) * LEVELS + levels[:, 2]
    return classes.flatten(1).unflatten(0, pixels.shape[:-3])


def rows(tokens: Float[Tensor, "b n d"], at: Int[Tensor, "b k"]) -> Float[Tensor, "b k d"]:
    """Some tokens of each image."""
    return tokens.gather(1, at[..., None].expand(-1, -1, tokens.shape[-1]))


class MaskedPatches(nn.Module):
    """Masked patch prediction around a ViT or a hybrid: `forward` gives the loss, `.model` is the model itself.

    Part of the patch embeddings is corrupted; what stood there is foretold from each one's own output token, by
    its mean color (512 classes), by 4 x 4 colors, or by its pixels as the model takes them (mean squared error). In a
    hybrid a patch is a cell of the backbone's map, and its target the pixels of that cell.

    The predictor starts at zero, as heads do here, so the first loss is ln 512 for colors; the mask token is normal,
    std 0.02, from `seed`.

    >>> import numpy as np, torch
    >>> from sightline.data.draws import Draws
    >>> task = sl.training.MaskedPatches(sl.build("vit-nano4"))
    >>> loss = task(torch.zeros(2, 3, 32, 32), None, Draws(0, np.arange(2)))
    >>> round(loss.item(), 3)
    6.238
    """

    def __init__(self, model: nn.Module, *, corrupt: float = 0.5, target: Target = "color", seed: int = 0):
        super().__init__()
        if not isinstance(model, ViT):
            raise ValueError(
                f"Masked patch prediction needs patches, so a ViT or a hybrid; got a {type(model).__name__}."
            )
        _check_share(model, corrupt)
        if target not in (known := ("color", "color-4x4", "pixels")):
            raise ValueError(f"target={target!r}: expected one of {', '.join(known)}.")
        if target != "pixels" and len(model.image.mean) != 3:
            raise ValueError(
                f"target={target!r} needs images of three colors; this model takes {len(model.image.mean)}."
            )
        self.model, self.corrupt, self.target = model, corrupt, target
        p, q = _cell(model)
        colors = LEVELS**3
        outputs = {"color": colors, "color-4x4": 16 * colors, "pixels": len(model.image.mean) * p * q}[target]
        like = model.embed.proj.weight
        token = 0.02 * torch.randn(model.encoder_config.width, generator=torch.Generator().manual_seed(seed))
        self.mask_token = nn.Parameter(token.to(like))
        self.predictor = nn.Linear(model.encoder_config.width, outputs, device=like.device, dtype=like.dtype)
        nn.init.zeros_(self.predictor.weight)
        nn.init.zeros_(self.predictor.bias)

    @property
    def idle(self) -> tuple[str, ...]:
        """Globs of the model's parameters that this loss does not reach."""
        return idle(self.model)

    def forward(self, images: Tensor, labels: Tensor | None, draws: Draws) -> Float[Tensor, ""]:
        """Mean loss over the corrupted patches; `images` are normalized, `labels` are not looked at."""
        chosen = corruption(self.model.encoder_config.tokens - self.model.encoder_config.prefix, self.corrupt, draws)
        tokens = self.foretell(self.corrupted(self.model.stem(images), chosen))
        at = torch.from_numpy(chosen.all).to(images.device)
        predicted = self.predictor(rows(tokens, at))
        wanted = self.targets(images)[torch.arange(len(images), device=images.device)[:, None], at]
        if self.target == "pixels":
            return F.mse_loss(predicted.float(), wanted)
        return F.cross_entropy(predicted.unflatten(-1, (-1, LEVELS**3)).flatten(0, -2).float(), wanted.flatten())

    def corrupted(self, patches: Float[Tensor, "b n d"], chosen: Corruption) -> Float[Tensor, "b n d"]:
        """The embeddings with the mask token and with each other in the chosen places."""
        row = torch.arange(len(patches), device=patches.device)[:, None]
        masked, replaced, by = (
            torch.from_numpy(a).to(patches.device) for a in (chosen.masked, chosen.replaced, chosen.by)
        )
        out = patches.clone()
        out[row, replaced] = patches[row, by]
        out[row, masked] = self.mask_token.to(patches.dtype)
        return out

    def foretell(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Output tokens of the patches."""
        model = self.model
        return _normed(model, model.through(model.sequence(patches)))[:, model.encoder_config.prefix :]

    def targets(self, images: Float[Tensor, "b c y x"]) -> Tensor:
        """What stands in every patch: (b, n, 1 or 16) classes, or (b, n, c p q) pixels."""
        if self.target == "pixels":
            return patch_pixels(images, self.model.encoder_config.grid).flatten(2).float()
        spec = self.model.image
        mean, std = (torch.tensor(v, device=images.device)[:, None, None] for v in (spec.mean, spec.std))
        colors = patch_pixels(images.float() * std + mean, self.model.encoder_config.grid)
        return color_classes(colors, 1 if self.target == "color" else 4)


class MAE(nn.Module):
    """Masked autoencoder (He et al. 2021) around a plain ViT: `forward` gives the loss, `.model` is the model itself.

    The encoder sees only the patches that are left; a small decoder sees all places, with a mask token where
    nothing was, and foretells the pixels of the hidden patches, each patch normalized to mean 0 and variance 1.

    >>> import numpy as np, torch
    >>> from sightline.data.draws import Draws
    >>> task = sl.training.MAE(sl.build("vit-nano4"), decoder=(32, 1))
    >>> task.visible(Draws(0, np.arange(2))).shape, task(torch.rand(2, 3, 32, 32), None, Draws(0, np.arange(2))) > 0
    ((2, 16), tensor(True))
    """

    def __init__(self, model: nn.Module, *, corrupt: float = 0.75, decoder: tuple[int, int] = (128, 2), seed: int = 0):
        super().__init__()
        if not isinstance(model, ViT) or isinstance(model, Hybrid):
            raise ValueError(
                f"MAE takes a plain ViT; got a {type(model).__name__}, whose convolutions would see what is hidden. "
                "A hybrid can learn by masked patches: --task masked."
            )
        if model.encoder_config.position == "relative":
            raise ValueError("MAE leaves tokens out, which relative positions do not allow: --task masked.")
        _check_share(model, corrupt)
        width, depth = decoder
        if width < 8 or width % 4 or depth < 1:
            raise ValueError(f"decoder={decoder}: expected (width, depth), the width a multiple of 4 from 8 on.")
        self.model, self.corrupt = model, corrupt
        like = model.embed.proj.weight
        self.decoder = Decoder(model.encoder_config, width, depth, outputs=like[0].numel())
        self.decoder.initialize(torch.Generator().manual_seed(seed))
        self.decoder.to(device=like.device, dtype=like.dtype)

    @property
    def idle(self) -> tuple[str, ...]:
        """Globs of the model's parameters that this loss does not reach."""
        return idle(self.model)

    def forward(self, images: Tensor, labels: Tensor | None, draws: Draws) -> Float[Tensor, ""]:
        """Mean loss over the hidden patches; `images` are normalized, `labels` are not looked at."""
        order = torch.from_numpy(shuffled_patches(self.patches, draws)).to(images.device)
        seen, hidden = order.split([self.patches - self.hidden, self.hidden], dim=1)
        predicted = self.decoder(self.encode(images, seen), seen, grid=self.model.encoder_config.grid)
        wanted = patch_pixels(images, self.model.encoder_config.grid).flatten(2).float()
        wanted = (wanted - wanted.mean(-1, keepdim=True)) / (wanted.var(-1, keepdim=True) + 1e-6).sqrt()
        return F.mse_loss(rows(predicted, hidden).float(), rows(wanted, hidden))

    @property
    def patches(self) -> int:
        return self.model.encoder_config.tokens - self.model.encoder_config.prefix

    @property
    def hidden(self) -> int:
        """How many patches of each image the encoder does not see."""
        return round(self.corrupt * self.patches)

    def visible(self, draws: Draws) -> Ints:
        """The patches that the encoder sees, (b, m)."""
        return shuffled_patches(self.patches, draws)[:, : self.patches - self.hidden]

    def encode(self, images: Tensor, seen: Int[Tensor, "b m"]) -> Float[Tensor, "b t d"]:
        """Prefix tokens and the seen patches through the model."""
        model, p = self.model, self.model.encoder_config.prefix
        prefix = torch.arange(p, device=seen.device).expand(len(seen), -1)
        kept = torch.cat([prefix, seen + p], dim=1)
        return _normed(model, model.through(rows(model.sequence(model.stem(images)), kept), kept=kept))


class Decoder(nn.Module):
    """A narrow, shallow ViT from the seen tokens to the pixels of all patches. Its positions are fixed waves, so it
    follows the model to another size (progressive resolution)."""

    def __init__(self, plan: ViTConfig, width: int, depth: int, *, outputs: int):
        super().__init__()
        heads = max(h for h in range(1, max(1, width // 32) + 1) if width % h == 0)  # 32 numbers a head, as the paper
        c = ViTConfig(width=width, depth=depth, heads=heads, mlp_width=4 * width, gelu=plan.gelu)
        self.prefix = plan.prefix
        self.narrow = nn.Linear(plan.width, width)
        self.mask_token = nn.Parameter(torch.empty(width))
        self.blocks = nn.ModuleList(Block(c, i) for i in range(depth))
        self.norm = nn.LayerNorm(width, eps=c.norm_eps)
        self.out = nn.Linear(width, outputs)

    def forward(
        self, tokens: Float[Tensor, "b t d"], seen: Int[Tensor, "b m"], *, grid: tuple[int, int]
    ) -> Float[Tensor, "b n o"]:
        tokens = self.narrow(tokens)
        waves = sincos_2d(grid, tokens.shape[-1]).to(tokens.device, self.mask_token.dtype)
        prefix, patches = tokens[:, : self.prefix], tokens[:, self.prefix :]
        places = self.mask_token.to(patches.dtype).expand(len(patches), len(waves), -1)
        places = places.scatter(1, seen[..., None].expand_as(patches), patches) + waves
        x = torch.cat([prefix.to(places.dtype), places], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x)[:, self.prefix :])

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """As the ViT's own table; the last map is no classifier, so it starts at Xavier too."""
        nn.init.normal_(self.mask_token, std=0.02, generator=generator)
        for module in self.modules():
            match module:
                case Attention():
                    for matrix in (*module.qkv.weight.chunk(3), module.out.weight):
                        xavier_uniform_(matrix, generator)
                    nn.init.zeros_(module.qkv.bias)
                    nn.init.zeros_(module.out.bias)
                case Mlp():
                    for dense in (module.fc1, module.fc2):
                        xavier_uniform_(dense.weight, generator)
                        nn.init.zeros_(dense.bias)
        for dense in (self.narrow, self.out):
            xavier_uniform_(dense.weight, generator)
            nn.init.zeros_(dense.bias)


def idle(model: ViT) -> tuple[str, ...]:
    """Globs of the parameters that serve classification alone, for `Recipe.frozen`."""
    parts = {"pool": model.pool, "pre_logits": model.pre_logits, "head": model.head, "head_distill": model.head_distill}
    return tuple(f"{name}.*" for name, part in parts.items() if part is not None and list(part.parameters()))


def _normed(model: ViT, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
    """Tokens behind the final norm, also of a model that pools before it."""
    return model.norm(tokens) if model.encoder_config.final_norm == "pooled" else tokens


def _cell(model: ViT) -> tuple[int, int]:
    (y, x), (down, across) = checks.pair(model.config.size), model.encoder_config.grid
    return y // down, x // across


def _check_share(model: ViT, corrupt: float) -> None:
    patches = model.encoder_config.tokens - model.encoder_config.prefix
    if not 0 < round(corrupt * patches) < patches:
        raise ValueError(f"corrupt={corrupt} of {patches} patches: expected at least one, and one left over.")

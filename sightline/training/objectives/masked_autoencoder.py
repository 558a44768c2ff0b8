"""Masked autoencoders (MAE)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.data.draws import Draws, Ints
from sightline.models.hybrid import Hybrid
from sightline.models.layers import Attention, Mlp, initialize_branch, xavier_uniform_
from sightline.models.mixer import Mixer
from sightline.models.positions import sincos_2d
from sightline.models.vit import Block, ViT, ViTConfig
from sightline.training.objectives.patches import (
    PatchObjective,
    check_share,
    final_tokens,
    gather_tokens,
    patch_count,
    patch_pixels,
    shuffle_patches,
)


class MAE(PatchObjective):
    """Masked autoencoder (He et al. 2021) around a plain ViT: `forward` returns the loss, `.model` is the model itself.

    The encoder sees only the visible patches; a small decoder sees all positions, with a mask token in place of the
    hidden ones, and predicts the pixels of the hidden patches, each patch normalized to mean 0 and variance 1.

    >>> import numpy as np, torch
    >>> from sightline.data.draws import Draws
    >>> objective = sl.training.MAE(sl.build("vit-nano4"), decoder=(32, 1))
    >>> draws = Draws(0, np.arange(2))
    >>> objective.visible(draws).shape, objective(torch.rand(2, 3, 32, 32), None, draws) > 0
    ((2, 16), tensor(True))
    """

    def __init__(self, model: nn.Module, *, corrupt: float = 0.75, decoder: tuple[int, int] = (128, 2), seed: int = 0):
        super().__init__()
        if not isinstance(model, ViT) or isinstance(model, Hybrid):
            why = "token mixing needs every patch" if isinstance(model, Mixer) else "convolutions see what is hidden"
            raise ValueError(
                f"MAE takes a plain ViT; got a {type(model).__name__}, whose {why}. "
                "For a hybrid use --task masked, for any model --task lejepa."
            )
        if model.encoder_config.position == "relative":
            raise ValueError("MAE drops tokens, which relative positions do not allow: use --task masked.")
        if model.encoder_config.attention == "axial":
            raise ValueError("MAE drops tokens, which axial attention does not allow: use --task masked.")
        check_share(model, corrupt)
        width, depth = decoder
        if width < 8 or width % 4 or depth < 1:
            raise ValueError(f"decoder={decoder}: expected (width, depth), the width a multiple of 4 and at least 8.")
        self.model, self.corrupt = model, corrupt
        like = model.embed.proj.weight
        self.decoder = Decoder(model.encoder_config, width, depth, outputs=like[0].numel())
        self.decoder.initialize(torch.Generator().manual_seed(seed))
        self.decoder.to(device=like.device, dtype=like.dtype)

    def forward(self, images: Tensor, labels: Tensor | None, draws: Draws) -> Float[Tensor, ""]:
        """Mean loss over the hidden patches; `images` are normalized, `labels` are ignored."""
        order = torch.from_numpy(shuffle_patches(self.patches, draws)).to(images.device)
        seen, hidden = order.split([self.patches - self.hidden, self.hidden], dim=1)
        predicted = self.decoder(self.encode(images, seen), seen, grid=self.model.encoder_config.grid)
        wanted = patch_pixels(images, self.model.encoder_config.grid).flatten(2).float()
        wanted = (wanted - wanted.mean(-1, keepdim=True)) / (wanted.var(-1, keepdim=True) + 1e-6).sqrt()
        return F.mse_loss(gather_tokens(predicted, hidden).float(), gather_tokens(wanted, hidden))

    @property
    def patches(self) -> int:
        return patch_count(self.model)

    @property
    def hidden(self) -> int:
        """Number of patches of each image that the encoder does not see."""
        return round(self.corrupt * self.patches)

    def visible(self, draws: Draws) -> Ints:
        """The patches that the encoder sees, (b, m)."""
        return shuffle_patches(self.patches, draws)[:, : self.patches - self.hidden]

    def encode(self, images: Tensor, seen: Int[Tensor, "b m"]) -> Float[Tensor, "b t d"]:
        """Output tokens of the prefix and the visible patches."""
        model, p = self.model, self.model.encoder_config.prefix
        prefix = torch.arange(p, device=seen.device).expand(len(seen), -1)
        kept = torch.cat([prefix, seen + p], dim=1)
        return final_tokens(model, model.run_blocks(gather_tokens(model.sequence(model.stem(images)), kept), kept=kept))


class Decoder(nn.Module):
    """A narrow, shallow ViT from the visible tokens to the pixels of all patches. Its position embeddings are fixed
    sines and cosines, so it works at any image size."""

    def __init__(self, encoder: ViTConfig, width: int, depth: int, *, outputs: int):
        super().__init__()
        heads = max(
            h for h in range(1, max(1, width // 32) + 1) if width % h == 0
        )  # 32 dimensions per head, as in the paper
        c = ViTConfig(width=width, depth=depth, heads=heads, mlp_width=4 * width, gelu=encoder.gelu)
        self.prefix = encoder.prefix
        self.narrow = nn.Linear(encoder.width, width)
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
        """As a ViT is initialized; the last layer is no classifier, so it starts at Xavier too."""
        nn.init.normal_(self.mask_token, std=0.02, generator=generator)
        for module in self.modules():
            if isinstance(module, Attention | Mlp):
                initialize_branch(module, generator)
        for dense in (self.narrow, self.out):
            xavier_uniform_(dense.weight, generator)
            nn.init.zeros_(dense.bias)

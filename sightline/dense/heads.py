"""Dense heads: a linear map of one or several layers, and queries that each find one segment."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.dense.config import DenseConfig
from sightline.dense.maps import check_queries, first_tokens, last_map, layer_maps, map_stride, run_block
from sightline.models import checks
from sightline.models.construct import Model
from sightline.models.layers import Attention, Mlp, initialize_branch, xavier_uniform_
from sightline.models.positions import sincos_2d
from sightline.models.vit import Block, ViT, ViTConfig


class Segments(NamedTuple):
    """What queries predict: logits of the classes, the last of them for no segment, and of the masks."""

    classes: Float[Tensor, "b q k"]
    masks: Float[Tensor, "b q y x"]


class LinearHead(nn.Module):
    """A linear map from each cell of a feature map to class logits; `layers` reads several layers of the model."""

    def __init__(self, model: Model, config: DenseConfig):
        super().__init__()
        self.read = layer_maps if config.kind == "layers" else last_map
        with torch.no_grad():
            width = self.read(model, _blank(model)).shape[1]
        self.out = nn.Conv2d(width, len(config.names), 1)

    def forward(self, model: Model, images: Tensor) -> Float[Tensor, "b k y x"]:
        return self.out(self.read(model, images))

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Zeros, as heads begin."""
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]


class QueryHead(nn.Module):
    """Learned queries run through the last blocks together with the patches (as EoMT does, Kerssies et al. 2025); each
    gives a class, and a mask by its dot product with every cell of an upscaled map.

    In a ViT or a hybrid these are the model's own last blocks. A CNN gets new ones after its map, with fixed sines and
    cosines for positions. No pyramid of maps, no boxes to regress, nothing to suppress afterwards: one query, one
    segment.
    """

    def __init__(self, model: Model, config: DenseConfig):
        super().__init__()
        self.config = config
        self.inside = isinstance(model, ViT)
        self.blocks = nn.ModuleList()
        if isinstance(model, ViT):
            check_queries(model, config.blocks)
            width, gelu, grid = model.encoder_config.width, model.encoder_config.gelu, model.encoder_config.grid
        else:
            with torch.no_grad():
                features = model.features(_blank(model))
            width, gelu, grid = config.width, "erf", features.grid
            c = ViTConfig(width=width, depth=config.blocks, heads=width // 32, mlp_width=4 * width, gelu="erf")
            self.narrow = nn.Linear(features.tokens.shape[-1], width)
            self.blocks.extend(Block(c, i) for i in range(config.blocks))
            self.norm = nn.LayerNorm(width, eps=c.norm_eps)
        self.queries = nn.Parameter(torch.empty(config.queries, width))
        self.classes = nn.Linear(width, len(config.names) + 1)
        channels = min(width, 256)
        self.embed = Mlp(width, width, gelu=gelu)
        self.project = nn.Linear(width, channels + 1)  # the last one is the bias of the mask: most cells are outside
        self.scale = max(1, 2 ** round(math.log2(map_stride(model, grid) / config.mask_stride)))
        self.upscale = nn.ConvTranspose2d(width, channels, self.scale, stride=self.scale)
        self.smooth = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, model: Model, images: Tensor) -> list[Segments]:
        """The segments after each of the blocks, the last ones last."""
        x, tokens, grid = self.start(model, images)
        x = torch.cat([x, self.queries.expand(len(x), -1, -1)], dim=1)
        found = []
        for i in range(self.config.blocks):
            x = self.step(model, x, i, tokens=tokens)
            found.append(self.segments(self.normalize(model, x), tokens, grid))
        return found

    def start(self, model: Model, images: Tensor) -> tuple[Tensor, int, tuple[int, int]]:
        """Tokens before the first query, their number, and the grid of those that are patches."""
        if isinstance(model, ViT):
            x = first_tokens(model, images, self.config.blocks)
            return x, x.shape[1], model.encoder_config.grid
        features = model.features(images)
        tokens = self.narrow(F.layer_norm(features.tokens, features.tokens.shape[-1:]))
        waves = sincos_2d(features.grid, tokens.shape[-1]).to(tokens)
        return tokens + waves, tokens.shape[1], features.grid

    def step(self, model: Model, x: Tensor, index: int, *, tokens: int) -> Tensor:
        if isinstance(model, ViT):
            first = model.encoder_config.depth - self.config.blocks
            return run_block(model, x, first + index, tokens=tokens)
        return self.blocks[index](x)

    def normalize(self, model: Model, x: Tensor) -> Tensor:
        return model.norm(x) if isinstance(model, ViT) else self.norm(x)

    def segments(self, x: Tensor, tokens: int, grid: tuple[int, int]) -> Segments:
        patches, queries = x[:, tokens - grid[0] * grid[1] : tokens], x[:, tokens:]
        fine = self.smooth(F.gelu(self.upscale(patches.mT.unflatten(2, grid))))
        kernels, bias = self.project(queries + self.embed(queries)).split((fine.shape[1], 1), dim=-1)
        masks = torch.einsum("bqc,bcyx->bqyx", kernels, fine) / math.sqrt(kernels.shape[-1])
        return Segments(self.classes(queries), masks + bias[..., None])

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """As a ViT is initialized; queries normal with std 1, so that they differ from the start."""
        nn.init.normal_(self.queries, std=1.0, generator=generator)
        for module in self.modules():
            match module:
                case Attention() | Mlp():
                    initialize_branch(module, generator)
                case nn.Conv2d() | nn.ConvTranspose2d():
                    fan = module.weight[0].numel() if isinstance(module, nn.Conv2d) else module.in_channels
                    nn.init.normal_(module.weight, std=fan**-0.5, generator=generator)
                    nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        for dense in [self.classes, self.project, *([] if self.inside else [self.narrow])]:
            xavier_uniform_(dense.weight, generator)
            nn.init.zeros_(dense.bias)


DenseHead = LinearHead | QueryHead


def build_head(model: Model, config: DenseConfig, *, seed: int = 0) -> DenseHead:
    """A new head for a model, initialized from a seed.

    >>> import torch
    >>> model = sl.build("vit-nano4", classes=0)
    >>> head = sl.dense.build_head(model, sl.dense.DenseConfig(task="detect", kind="queries", classes=("cat",)))
    >>> head(model, torch.zeros(1, 3, 32, 32))[-1].masks.shape
    torch.Size([1, 50, 8, 8])
    """
    head: DenseHead = QueryHead(model, config) if config.kind == "queries" else LinearHead(model, config)
    head.initialize(torch.Generator().manual_seed(seed))
    like = next(model.parameters())
    return head.to(device=like.device, dtype=like.dtype)


def _blank(model: Model) -> Tensor:
    like = next(model.parameters())
    return torch.zeros(1, model.config.channels, *checks.pair(model.config.size), device=like.device, dtype=like.dtype)

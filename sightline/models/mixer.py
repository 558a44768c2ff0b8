"""MLP-Mixer (Tolstikhin et al. 2021): patches like a ViT's, mixed by MLPs alone."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.models import checks
from sightline.models.layers import DropPath, Mlp, PatchEmbed, lecun_normal_
from sightline.models.taps import Tap
from sightline.spec import Displayable, Features, ImageSpec


@dataclass(frozen=True, kw_only=True)
class MixerConfig:
    """Everything that makes one Mixer differ from another; the defaults are the paper's.

    >>> sl.models.MixerConfig(width=768, depth=12, token_width=384, mlp_width=3072).tokens
    196
    """

    width: int
    depth: int
    token_width: int  # hidden units of the MLP that mixes patches
    mlp_width: int  # hidden units of the MLP that mixes channels
    patch: checks.Pair = 16
    size: checks.Pair = 224  # height, width
    channels: int = 3
    classes: int = 1000  # 0: features only
    head_bias: float = 0.0
    norm_eps: float = 1e-6
    gelu: Literal["tanh", "erf"] = "tanh"
    dropout: float = 0.0
    drop_path: float = 0.0  # rate of the last block, increasing linearly from 0

    def __post_init__(self) -> None:
        for name in ("patch", "size"):
            object.__setattr__(self, name, checks.pair(getattr(self, name)))
        checks.choices(self)
        checks.counts(self, "width", "depth", "token_width", "mlp_width", "patch", "size", "channels")
        checks.counts(self, "classes", least=0)
        checks.fraction(self, "dropout", "drop_path")
        checks.divides(checks.pair(self.size), checks.pair(self.patch))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (y, x), (p, q) = checks.pair(self.size), checks.pair(self.patch)
        return y // p, x // q

    @property
    def tokens(self) -> int:
        """Number of patches; there are no other tokens."""
        return self.grid[0] * self.grid[1]

    @property
    def image(self) -> ImageSpec:
        """The preprocessing of the paper's code: both sides resized to size, values in [-1, 1]."""
        half = (0.5,) * self.channels
        return ImageSpec(size=checks.pair(self.size), mean=half, std=half, fit="squash", interpolation="bilinear")


def refuse_other_grid(old: object, new: object) -> None:
    """Refuse another number of patches for a trained Mixer; other models, and the same grid, pass."""
    if isinstance(old, MixerConfig) and isinstance(new, MixerConfig) and old.grid != new.grid:
        (a, b), (c, d), (y, x) = old.grid, new.grid, checks.pair(new.size)
        raise ValueError(
            f"A Mixer cannot change from {a} x {b} to {c} x {d} patches ({y} x {x} pixels): its token-mixing layers "
            "have weights for each patch. Keep its image size, or train a new one: sl.build(name, size=...)."
        )


class MixerBlock(nn.Module):
    """An MLP over the patches of each channel, then one over the channels of each patch, each with a skip connection.

    Every intermediate tensor has a module path: `mix_skip` is the input, `mix_branch` and `mlp_branch` are the outputs
    of token mixing and channel mixing, `mix_sum` and `mlp_sum` the residual sums.
    """

    def __init__(self, c: MixerConfig, index: int):
        super().__init__()
        self.skips = True
        rate = c.drop_path * index / max(c.depth - 1, 1)
        self.mix_skip = Tap()
        self.norm1 = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.mix = Mlp(c.tokens, c.token_width, gelu=c.gelu, dropout=c.dropout)
        self.mix_path, self.mix_branch, self.mix_sum = DropPath(rate), Tap(), Tap()
        self.norm2 = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.mlp = Mlp(c.width, c.mlp_width, gelu=c.gelu, dropout=c.dropout)
        self.mlp_path, self.mlp_branch, self.mlp_sum = DropPath(rate), Tap(), Tap()

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        x = self.mix_skip(x)
        mixed = self.mix_branch(self.mix_path(self.mix(self.norm1(x).mT).mT))
        x = self.mix_sum(self.add(x, mixed))
        return self.mlp_sum(self.add(x, self.mlp_branch(self.mlp_path(self.mlp(self.norm2(x))))))

    def add(self, skip: Tensor, branch: Tensor) -> Tensor:
        return skip + branch if self.skips else branch


class Mixer(nn.Module, Displayable):
    """MLP-Mixer: `model(pixels)` gives logits, `model.features(pixels)` the patches after the last norm.

    Takes images of one size: the token-mixing layers have weights for each patch. Kernels are initialized LeCun normal,
    biases 0, norms to 1 and 0, the head to zero with bias `head_bias`, as in the paper's code.

    >>> import torch
    >>> sl.build("mixer-nano4", classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: MixerConfig):
        super().__init__()
        c = self.config = config
        self.image = c.image
        self.checkpointing = False  # trade time for memory: recompute each block in the backward pass
        self.embed = PatchEmbed(c.channels, checks.pair(c.patch), c.width)
        self.encoder_input = Tap()
        self.blocks = nn.ModuleList(MixerBlock(c, i) for i in range(c.depth))
        self.norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.pooled = Tap()
        self.head = nn.Linear(c.width, c.classes) if c.classes else nn.Identity()

    def forward(self, x: Tensor) -> Float[Tensor, "b k"]:
        return self.head(self.pooled(self.encode(x).mean(1)))

    def features(self, x: Tensor) -> Features:
        """The patches after the last norm in raster order, and their mean."""
        tokens = self.encode(x)
        return Features(tokens=tokens, grid=self.config.grid, prefix=tokens[:, :0], pooled=self.pooled(tokens.mean(1)))

    def encode(self, x: Tensor) -> Float[Tensor, "b n d"]:
        """Pixels to the patches after the last block, normalized."""
        self.check(x)
        x = self.encoder_input(self.embed(x))
        for block in self.blocks:
            again = self.checkpointing and self.training
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.norm(x)

    def check(self, x: Tensor) -> None:
        checks.pixels(x, channels=self.config.channels, model=self)
        size = checks.pair(self.config.size)
        if tuple(x.shape[2:]) != size:
            raise ValueError(
                f"This Mixer takes images of {size[0]} x {size[1]}; got {x.shape[2]} x {x.shape[3]}. Its token-mixing "
                "layers have weights for each patch, so that it has one size: resize the images."
            )

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Initialize every parameter from one generator, in module order."""
        for module in self.modules():
            match module:
                case nn.LayerNorm():
                    module.reset_parameters()
                case nn.Linear() | nn.Conv2d() if module is not self.head:
                    lecun_normal_(module.weight, generator)
                    nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)

"""The Vision Transformer (Dosovitskiy et al. 2020), with the variations its paper and successors compare."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.models import checks
from sightline.models.layers import (
    Attention,
    DropPath,
    LayerScale,
    Lines,
    Mlp,
    PatchEmbed,
    TokenBatchNorm,
    initialize_branch,
    lecun_normal_,
    xavier_uniform_,
)
from sightline.models.positions import Kind, Positions, RelativePositions
from sightline.models.taps import Tap, is_watched
from sightline.spec import Displayable, Features, ImageSpec


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Everything that makes one ViT differ from another; the defaults are the paper's.

    >>> ViTConfig(width=192, depth=12, heads=3, mlp_width=768).grid
    (14, 14)
    """

    width: int
    depth: int
    heads: int
    mlp_width: int
    patch: checks.Pair = 16
    size: checks.Pair = 224  # height, width
    channels: int = 3
    classes: int = 1000  # 0: features only

    pool: Literal["cls", "gap", "map"] = "cls"
    class_token: bool | None = None  # None: present where pool is "cls"
    distill_token: bool = False
    registers: int = 0
    position: Kind = "1d"
    position_at: Literal["stem", "every", "shared"] = "stem"
    position_rows: int | None = None  # prefix tokens that have a position row; None: class and distillation token
    head: Literal["linear", "mlp"] = "linear"  # "mlp": with a tanh layer `pre_logits` before it, as in pre-training
    head_bias: float = 0.0

    norm_at: Literal["pre", "post"] = "pre"  # "post": the vanilla Transformer
    norm: Literal["layer", "batch"] = "layer"
    norm_eps: float = 1e-6
    final_norm: Literal["tokens", "pooled"] = "tokens"  # "pooled": after pooling, as timm does for gap
    gelu: Literal["tanh", "erf"] = "tanh"
    qkv_bias: bool = True
    qk_norm: bool = False  # LayerNorm of queries and keys in every head (ViT-22B)
    layer_scale: float | None = None  # its initial value
    dropout: float = 0.0
    drop_path: float = 0.0  # rate of the last block, increasing linearly from 0
    no_skip: tuple[int, ...] = ()  # blocks without their two residual connections, counted from 0
    # "axial": each block becomes two, one that attends along rows and one along columns, an MLP behind each (D.6).
    # Not in the repr, which is part of fingerprints: those of models from before it was added stay valid.
    attention: Literal["full", "axial"] = field(default="full", repr=False)

    def __post_init__(self) -> None:
        for name in ("patch", "size"):
            object.__setattr__(self, name, checks.pair(getattr(self, name)))
        object.__setattr__(self, "no_skip", tuple(sorted(set(self.no_skip))))
        checks.choices(self)
        checks.counts(self, "width", "depth", "heads", "mlp_width", "patch", "size", "channels")
        checks.counts(self, "classes", "registers", least=0)
        checks.fraction(self, "dropout", "drop_path")
        if self.class_token is None:
            object.__setattr__(self, "class_token", self.pool == "cls")
        if self.position_rows is None:
            rows = bool(self.class_token) + self.distill_token if self.position in ("1d", "2d") else 0
            object.__setattr__(self, "position_rows", rows)
        _refuse_impossible(self)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (y, x), (p, q) = checks.pair(self.size), checks.pair(self.patch)
        return y // p, x // q

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches."""
        return bool(self.class_token) + self.distill_token + self.registers

    @property
    def tokens(self) -> int:
        """Length of the sequence in the encoder."""
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def layers(self) -> int:
        """Blocks of the encoder, each with one attention and one MLP: `depth`, or with axial attention twice that."""
        return self.depth * len(self.lines)

    @property
    def lines(self) -> tuple[Lines | None, ...]:
        """What the attentions of one block go along: None is all tokens."""
        if self.attention == "full":
            return (None,)
        return Lines("rows", self.grid, self.prefix), Lines("columns", self.grid, self.prefix)

    @property
    def image(self) -> ImageSpec:
        """The preprocessing of the paper's code: both sides resized to size, values in [-1, 1]."""
        half = (0.5,) * self.channels
        return ImageSpec(size=checks.pair(self.size), mean=half, std=half, fit="squash", interpolation="bilinear")


def _refuse_impossible(c: ViTConfig) -> None:
    checks.divides(checks.pair(c.size), checks.pair(c.patch))
    if c.width % c.heads:
        raise ValueError(f"width {c.width} does not divide into {c.heads} heads.")
    if c.position_at != "stem" and c.position not in ("1d", "2d"):
        why = {
            "none": "there is no embedding to add",
            "relative": "it already acts inside the attention of every layer",
            "sincos": "its waves are fixed, so a copy per layer learns nothing",
        }[c.position]
        raise ValueError(f"position={c.position!r} requires position_at='stem': {why} (ViT, table 8).")
    divisor = {"2d": 2, "sincos": 4}.get(c.position, 1)
    if c.width % divisor:
        raise ValueError(f"position={c.position!r} needs a width divisible by {divisor}; got {c.width}.")
    if c.position == "sincos" and c.width < 8:
        raise ValueError(f"position='sincos' needs a width of at least 8; got {c.width}.")
    limit = c.prefix if c.position in ("1d", "2d") else 0
    if not 0 <= (c.position_rows or 0) <= limit:
        raise ValueError(f"position_rows must lie between 0 and {limit} for this model; got {c.position_rows}.")
    if c.pool == "cls" and not c.class_token:
        raise ValueError("pool='cls' needs the class token: drop class_token=False or use pool='gap'.")
    if c.distill_token and c.pool != "cls":
        raise ValueError("A distillation token requires pool='cls' (DeiT): the two tokens' logits are averaged.")
    if c.distill_token and c.head == "mlp":
        raise ValueError("A distillation token requires head='linear' (DeiT).")
    if c.final_norm == "pooled" and c.pool == "map":
        raise ValueError("final_norm='pooled' requires pool='cls' or pool='gap'; the map head has a norm of its own.")
    if c.norm_at == "post" and c.final_norm == "pooled":
        raise ValueError("norm_at='post' has no final norm, so final_norm='pooled' has no effect: drop it.")
    if wrong := [i for i in c.no_skip if not 0 <= i < c.layers]:
        raise ValueError(f"no_skip takes block numbers from 0 to {c.layers - 1}; got {wrong}.")
    if c.attention == "axial" and c.position == "relative":
        raise ValueError("attention='axial' needs position='1d', '2d', 'sincos' or 'none': relative is for all pairs.")
    if c.layer_scale is not None and c.layer_scale <= 0:
        raise ValueError(f"layer_scale is a positive initial value or None; got {c.layer_scale}.")


class Block(nn.Module):
    """Encoder block: attention, then an MLP, each with a skip connection (equations 2 and 3).

    Every intermediate tensor has a module path: `attn_skip` is the input, `attn_branch` and `mlp_branch` are the
    outputs of the branches, `attn_sum` and `mlp_sum` the residual sums. The skip of the MLP is `attn_sum`. With axial
    attention, blocks 0, 2, 4 ... attend along rows and blocks 1, 3, 5 ... along columns.
    """

    def __init__(self, c: ViTConfig, index: int):
        super().__init__()
        self.pre_norm, self.skips = c.norm_at == "pre", index not in c.no_skip
        rate = c.drop_path * index / max(c.layers - 1, 1)
        relative = None
        if c.position == "relative":
            relative = RelativePositions(c.grid, c.heads, c.width, prefix=c.prefix)
        self.attn_skip = Tap()
        self.norm1 = normalization(c)
        qk_eps = c.norm_eps if c.qk_norm else None
        own: dict[str, Any] = {"relative": relative, "qk_eps": qk_eps, "lines": c.lines[index % len(c.lines)]}
        self.attn = Attention(c.width, c.heads, qkv_bias=c.qkv_bias, dropout=c.dropout, **own)
        self.attn_scale, self.attn_path, self.attn_branch, self.attn_sum = branch_scale(c), DropPath(rate), Tap(), Tap()
        self.norm2 = normalization(c)
        self.mlp = Mlp(c.width, c.mlp_width, gelu=c.gelu, dropout=c.dropout)
        self.mlp_scale, self.mlp_path, self.mlp_branch, self.mlp_sum = branch_scale(c), DropPath(rate), Tap(), Tap()

    def forward(self, x: Float[Tensor, "b n d"], rows: int | None = None) -> Float[Tensor, "b m d"]:
        x = self.attn_skip(x)
        skip = x[:, :rows]
        if self.pre_norm:
            x = self.attn_sum(self.add(skip, self.attention_branch(self.norm1(x), rows)))
            return self.mlp_sum(self.add(x, self.feedforward_branch(self.norm2(x))))
        x = self.norm1(self.attn_sum(self.add(skip, self.attention_branch(x, rows))))
        return self.norm2(self.mlp_sum(self.add(x, self.feedforward_branch(x))))

    def attention_branch(self, x: Tensor, rows: int | None = None) -> Tensor:
        return self.attn_branch(self.attn_path(self.attn_scale(self.attn(x, rows))))

    def feedforward_branch(self, x: Tensor) -> Tensor:
        return self.mlp_branch(self.mlp_path(self.mlp_scale(self.mlp(x))))

    def add(self, skip: Tensor, branch: Tensor) -> Tensor:
        return skip + branch if self.skips else branch


def normalization(c: ViTConfig) -> nn.Module:
    return nn.LayerNorm(c.width, eps=c.norm_eps) if c.norm == "layer" else TokenBatchNorm(c.width, eps=c.norm_eps)


def branch_scale(c: ViTConfig) -> nn.Module:
    return nn.Identity() if c.layer_scale is None else LayerScale(c.width, c.layer_scale)


class MapPool(nn.Module):
    """Multi-head attention pooling: one learned query attends to all tokens, then an MLP (Zhai et al. 2021)."""

    def __init__(self, c: ViTConfig):
        super().__init__()
        self.heads = c.heads
        self.probe = nn.Parameter(torch.empty(1, 1, c.width))
        self.query = nn.Linear(c.width, c.width)
        self.key_value = nn.Linear(c.width, 2 * c.width)
        self.out = nn.Linear(c.width, c.width)
        self.norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.mlp = Mlp(c.width, c.mlp_width, gelu=c.gelu)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        q = rearrange(self.query(self.probe), "1 1 (h d) -> 1 h 1 d", h=self.heads).expand(x.shape[0], -1, -1, -1)
        k, v = rearrange(self.key_value(x), "b n (two h d) -> two b h n d", two=2, h=self.heads)
        y = self.out(rearrange(F.scaled_dot_product_attention(q, k, v), "b h 1 d -> b 1 (h d)"))
        return (y + self.mlp(self.norm(y)))[:, 0]


class ViT(nn.Module, Displayable):
    """Vision Transformer: `model(pixels)` gives logits, `model.features(pixels)` the tokens of the encoder.

    Initialization, as in the paper's code:

    | parameter                             | start                                                         |
    |---------------------------------------|---------------------------------------------------------------|
    | query, key, value, out, MLP kernels   | Xavier uniform, q, k and v each by its own fan                |
    | attention biases; MLP biases          | 0; normal, std 1e-6                                           |
    | patch embedding, pre_logits           | LeCun normal (truncated at 2 std), bias 0                     |
    | position tables                       | normal, std 0.02                                              |
    | class and distillation token          | 0                                                             |
    | registers                             | normal, std 1e-6 (DINOv2)                                     |
    | head                                  | 0, bias `head_bias`                                           |
    | norms                                 | scale 1, bias 0                                               |

    >>> import torch
    >>> model = sl.build("vit-nano4", classes=10, size=32)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        c = self.encoder_config = config  # in a hybrid, sizes are in cells of the backbone's map
        self.image = c.image
        self.checkpointing = False  # trade time for memory: recompute each block in the backward pass
        self.embed = PatchEmbed(c.channels, checks.pair(c.patch), c.width)
        if c.prefix:
            self.prefix = nn.Parameter(torch.empty(c.prefix, c.width))
        copies = {"stem": 1, "shared": 1, "every": c.layers}[c.position_at] if c.position != "none" else 0
        copies = 0 if c.position == "relative" else copies
        self.positions = nn.ModuleList(
            Positions(c.position, c.grid, c.width, rows=c.position_rows or 0, prefix=c.prefix)  # type: ignore[arg-type]
            for _ in range(copies)
        )
        self.drop = nn.Dropout(c.dropout)
        self.encoder_input = Tap()
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.layers))
        self.norm = nn.Identity() if c.norm_at == "post" else normalization(c)
        self.pool = MapPool(c) if c.pool == "map" else None
        self.pre_logits = nn.Linear(c.width, c.width) if c.head == "mlp" else None
        self.pooled = Tap()
        self.head = nn.Linear(c.width, c.classes) if c.classes else nn.Identity()
        self.head_distill = nn.Linear(c.width, c.classes) if c.classes and c.distill_token else None

    def forward(self, x: Tensor) -> Float[Tensor, "b k"]:
        tokens = self.encode(x, self.num_head_tokens())
        logits = self.head(self.represent(tokens))
        if self.head_distill is None:
            return logits
        return (logits + self.head_distill(tokens[:, 1])) / 2  # DeiT: the mean of the two heads

    def features(self, x: Tensor) -> Features:
        """Tokens after the final norm in raster order, prefix tokens, and the input of the head."""
        tokens, c = self.encode(x), self.encoder_config
        patches, prefix = tokens[:, c.prefix :], tokens[:, : c.prefix]
        return Features(tokens=patches, grid=c.grid, prefix=prefix, pooled=self.represent(tokens))

    def num_head_tokens(self) -> int | None:
        """Number of leading tokens that the head reads, None for all: the last block can skip the others.

        The logits are the same; this saves a sixteenth of the time at depth 12 and an eighth at depth 6. While the last
        block is recorded it computes all tokens, and BatchNorm needs all of them for its statistics.
        """
        c = self.encoder_config
        if c.pool != "cls" or c.norm != "layer" or is_watched(self.blocks[-1]) or is_watched(self.norm):
            return None
        return 1 + c.distill_token

    def encode(self, x: Tensor, rows: int | None = None) -> Float[Tensor, "b n d"]:
        """Pixels to the tokens after the last block (or its first `rows`), normalized unless the norm comes after the
        pooling."""
        return self.run_blocks(self.sequence(self.stem(x)), rows)

    def run_blocks(
        self, x: Float[Tensor, "b n d"], rows: int | None = None, *, kept: Int[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b m d"]:
        """Tokens through the blocks and the final norm. `kept` holds the token indices of a shortened sequence."""
        c = self.encoder_config
        for i, block in enumerate(self.blocks):
            if c.position_at != "stem":
                x = self.add_positions(x, i if c.position_at == "every" else 0, kept)
            wanted = rows if i == c.layers - 1 else None
            if self.checkpointing and self.training:
                x = checkpoint(block, x, wanted, use_reentrant=False)
            else:
                x = block(x, wanted)
        return self.norm(x) if c.final_norm == "tokens" else x

    def add_positions(self, x: Tensor, table: int, kept: Tensor | None) -> Tensor:
        """Add position embeddings to all tokens, or to those that are kept."""
        if kept is None:
            return self.positions[table](x)
        return x + self.positions[table](x.new_zeros(1, self.encoder_config.tokens, self.encoder_config.width))[0][kept]

    def stem(self, x: Tensor) -> Float[Tensor, "b n d"]:
        """Pixels to patch embeddings."""
        self.check(x, self.config.channels, checks.pair(self.config.size))
        return self.embed(x)

    def sequence(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b t d"]:
        """Prefix tokens and patches in one sequence, with positions if they are added at the stem (equation 1)."""
        if self.encoder_config.prefix:
            patches = torch.cat([self.prefix.expand(patches.shape[0], -1, -1), patches], dim=1)
        if self.encoder_config.position_at == "stem" and len(self.positions):
            patches = self.positions[0](patches)
        return self.encoder_input(self.drop(patches))

    def represent(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        """The input of the head: pooled tokens, through `pre_logits` if there is one."""
        c = self.encoder_config
        if self.pool is not None:
            y = self.pool(tokens)
        else:
            y = tokens[:, 0] if c.pool == "cls" else tokens[:, c.prefix :].mean(1)
        if c.final_norm == "pooled":
            y = self.norm(y[:, None])[:, 0]
        return self.pooled(y if self.pre_logits is None else torch.tanh(self.pre_logits(y)))

    def check(self, x: Tensor, channels: int, size: tuple[int, int]) -> None:
        checks.pixels(x, channels=channels, model=self)
        if tuple(x.shape[2:]) != size:
            raise ValueError(
                f"This model takes images of {size[0]} x {size[1]}; got {x.shape[2]} x {x.shape[3]}. "
                f"Resize the images, or the model: sl.models.resize(model, size=({x.shape[2]}, {x.shape[3]}))."
            )

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Initialize every parameter and buffer from one generator, in module order, as the class docstring says."""
        c = self.encoder_config
        lecun_normal_(self.embed.proj.weight, generator)
        nn.init.zeros_(self.embed.proj.bias)  # type: ignore[arg-type]
        if c.prefix:
            nn.init.zeros_(self.prefix)
            if c.registers:
                nn.init.normal_(self.prefix[-c.registers :], std=1e-6, generator=generator)
        for module in self.modules():
            match module:
                case Positions() | RelativePositions():
                    module.initialize(generator)
                case Attention() | Mlp():
                    initialize_branch(module, generator, bias_std=1e-6)
                case MapPool():
                    for matrix in (module.query.weight, *module.key_value.weight.chunk(2), module.out.weight):
                        xavier_uniform_(matrix, generator)
                    xavier_uniform_(module.probe[0], generator)
                    for dense in (module.query, module.key_value, module.out):
                        nn.init.zeros_(dense.bias)
                case nn.LayerNorm() | TokenBatchNorm():
                    module.reset_parameters()
                case LayerScale():
                    nn.init.constant_(module.gamma, module.start)
        if self.pre_logits is not None:
            lecun_normal_(self.pre_logits.weight, generator)
            nn.init.zeros_(self.pre_logits.bias)
        for head in (self.head, self.head_distill):
            if isinstance(head, nn.Linear):
                nn.init.zeros_(head.weight)
                nn.init.constant_(head.bias, c.head_bias)

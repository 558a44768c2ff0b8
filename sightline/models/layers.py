"""The layers of ViT and Mixer: patches, attention, MLP, LayerScale, stochastic depth, batch norm over tokens; initial
values from an explicit random generator, by the rules of the papers' JAX code."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from sightline.models.positions import RelativePositions
from sightline.models.taps import Tap

FEW_TOKENS = 256  # written out, attention to 197 tokens still takes 0.6 of the time of a cast to float32 and back


def attention(
    q: Float[Tensor, "... n d"],
    k: Float[Tensor, "... m d"],
    v: Float[Tensor, "... m e"],
    *,
    scale: float = 1.0,
    bias: Float[Tensor, "... n m"] | None = None,
) -> tuple[Float[Tensor, "... n e"], Float[Tensor, "... n m"]]:
    """Dot-product attention, softmax(scale q K' + bias) V: returns (context, weights).

    For self-attention pass one sequence three times; for cross-attention, queries from one sequence and keys and
    values from another. Unscaled by default; the papers' multi-head form scales by 1 / sqrt(d).

    >>> import torch
    >>> q = torch.tensor([[0.2, 0.9, 0.0]])
    >>> k = torch.tensor([[.1, 0, .8], [.1, .9, 0], [0, .1, .8], [.2, .1, .6], [.9, 0, .1]])
    >>> context, weights = sl.models.attention(q, k, k)
    >>> [round(w, 3) for w in weights[0].tolist()]
    [0.151, 0.34, 0.162, 0.169, 0.178]
    """
    logits = (q * scale if scale != 1.0 else q) @ k.mT
    weights = (logits if bias is None else logits + bias).softmax(-1)
    return weights @ v, weights


def basic_self_attention(
    x: Float[Tensor, "... n d"], *, scale: float = 1.0
) -> tuple[Float[Tensor, "... n d"], Float[Tensor, "... n n"]]:
    """Self-attention without parameters: each vector becomes a mean of all vectors, weighted by similarity.

    >>> import torch
    >>> y, weights = sl.models.basic_self_attention(torch.eye(3))
    >>> weights.sum(-1).round(decimals=4).tolist()
    [1.0, 1.0, 1.0]
    """
    return attention(x, x, x, scale=scale)


@dataclass(frozen=True)
class Lines:
    """The rows or the columns of a grid of patches, for attention along one of them (ViT, appendix D.6).

    A patch attends to the patches of its own line and to all prefix tokens. A prefix token, such as the class token,
    has no place in the grid: it belongs to every line, so that it attends to all tokens.
    """

    axis: Literal["rows", "columns"]
    grid: tuple[int, int]
    prefix: int

    def bias(self, like: Tensor) -> Float[Tensor, "n n"]:
        """0 where a token (row) attends to another (column), minus infinity elsewhere."""
        height, width = self.grid
        cell = torch.arange(height * width, device=like.device)
        line = cell // width if self.axis == "rows" else cell % width
        apart = F.pad(line[:, None] != line, (self.prefix, 0, self.prefix, 0))
        return torch.zeros(apart.shape, dtype=like.dtype, device=like.device).masked_fill_(apart, -math.inf)

    def attend(
        self,
        q: Float[Tensor, "b h m d"],
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n d"],
    ) -> Float[Tensor, "b h m d"]:
        """The same attention, line by line, without the products that the bias would drop; of prefix tokens alone if
        there are no more queries."""
        p, whole = self.prefix, {"y": self.grid[0], "x": self.grid[1]}
        first = F.scaled_dot_product_attention(q[:, :, :p], k, v)
        if q.shape[2] <= p:
            return first
        lines, inner = ("y", "x") if self.axis == "rows" else ("x", "y")
        split = f"b h (y x) d -> (b {lines}) h {inner} d"
        own = rearrange(q[:, :, p:], split, **whole)
        keys, values = (
            torch.cat([t[:, :, :p].repeat_interleave(whole[lines], 0), rearrange(t[:, :, p:], split, **whole)], dim=2)
            for t in (k, v)
        )
        out = F.scaled_dot_product_attention(own, keys, values)
        back = f"(b {lines}) h {inner} d -> b h (y x) d"
        return torch.cat([first, rearrange(out, back, **whole)], dim=2)

    def products(self) -> int:
        """Pairs of a token and one that it attends to."""
        patches, along = self.grid[0] * self.grid[1], self.grid[1 if self.axis == "rows" else 0]
        return patches * (along + self.prefix) + self.prefix * (patches + self.prefix)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Float[Tensor, "b h n d"]:
    """Attention by torch's kernel. It is slow in trainings in bfloat16 on a CPU: there it is written out for few
    tokens, and computed in float32 for many, whose probabilities would take too much memory."""
    if v.dtype != torch.bfloat16 or v.device.type != "cpu" or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    with torch.autocast("cpu", enabled=False):
        if k.shape[-2] <= FEW_TOKENS:
            return attention(q, k, v, scale=q.shape[-1] ** -0.5, bias=None if bias is None else bias.to(v.dtype))[0]
        bias = None if bias is None else bias.float()
        return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=bias).to(v.dtype)


class Attention(nn.Module):
    """Multi-head self-attention (ViT, appendix A), over all tokens or along lines; fused unless `probs` is recorded."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        relative: RelativePositions | None = None,
        qk_eps: float | None = None,  # None: queries and keys are not normalized
        lines: Lines | None = None,
    ):
        super().__init__()
        self.heads, self.lines = heads, lines
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        if qk_eps is not None:
            self.q_norm, self.k_norm = (nn.LayerNorm(width // heads, eps=qk_eps) for _ in "qk")
        self.qk_norm = qk_eps is not None
        self.q, self.k, self.v = Tap(), Tap(), Tap()
        self.relative = relative
        self.probs = Tap()  # (b, h, n, n)
        self.per_head = Tap()  # (b, h, n, d): the output of each head, before the projection
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d"], rows: int | None = None) -> Float[Tensor, "b m d"]:
        """The outputs of all tokens, or of the first `rows`; either way they attend to all tokens."""
        q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=self.heads) for y in self.qkv(x).chunk(3, dim=-1))
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = self.q(q), self.k(k), self.v(v)
        bias = self.relative(q) if self.relative is not None else None
        if rows is not None:
            q, bias = q[:, :, :rows], bias if bias is None else bias[:, :, :rows]
        if self.probs.watched:  # computed explicitly only for recording: the fused kernel never forms the probabilities
            bias = bias if self.lines is None else self.lines.bias(q)[:rows]
            y, probs = attention(q, k, v, scale=q.shape[-1] ** -0.5, bias=bias)
            self.probs(probs)
        elif self.lines is not None:
            y = self.lines.attend(q, k, v)
        else:
            y = fused_attention(q, k, v, bias)
        return self.drop(self.out(rearrange(self.per_head(y), "b h n d -> b n (h d)")))

    def extra_repr(self) -> str:
        return "" if self.lines is None else f"along {self.lines.axis}"


class Gelu(nn.Module):
    """GELU, exact ("erf", the PyTorch ports) or by the tanh formula (the default of the papers' JAX code)."""

    def __init__(self, form: Literal["tanh", "erf"]):
        super().__init__()
        self.form = form

    def forward(self, x: Tensor, overwrite: bool = False) -> Tensor:
        form = "tanh" if self.form == "tanh" else "none"
        return torch.ops.aten.gelu_(x, approximate=form) if overwrite else F.gelu(x, approximate=form)

    def extra_repr(self) -> str:
        return self.form


class Mlp(nn.Module):
    """Two dense layers with a GELU between them, applied to each token separately."""

    def __init__(self, width: int, hidden: int, *, gelu: Literal["tanh", "erf"] = "tanh", dropout: float = 0.0):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.hidden = Gelu(gelu)
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        y = self.fc1(x)
        # the widest tensor of the block: without gradients it is overwritten (a seventh of the MLP's time on a CPU)
        y = self.hidden(y, overwrite=not (y.requires_grad or self.fc1._forward_hooks))
        return self.drop(self.fc2(self.drop(y)))


class LayerScale(nn.Module):
    """A learned factor per channel on a branch (CaiT; DeiT III, DINOv2)."""

    def __init__(self, width: int, start: float):
        super().__init__()
        self.start = start
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: drops the branch for random images of the batch and scales it up for the others."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = x.new_empty((len(x),) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)
        return x * kept.div_(1 - self.rate)

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


class TokenBatchNorm(nn.BatchNorm1d):
    """BatchNorm over batch and tokens per feature: the alternative to LayerNorm."""

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return super().forward(x.flatten(0, 1)).view_as(x)


class PatchConv(nn.Conv2d):
    """A convolution whose stride is its kernel size, computed as one linear map of each patch."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        p, q = self.kernel_size
        patches = rearrange(x, "b c (y p) (x q) -> b (y x) (c p q)", p=p, q=q)
        return F.linear(patches, self.weight.flatten(1), self.bias)


class PatchEmbed(nn.Module):
    """Split into patches and map each linearly to the width."""

    def __init__(self, channels: int, patch: tuple[int, int], width: int):
        super().__init__()
        self.proj = PatchConv(channels, width, patch, stride=patch)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        return self.proj(x)


def xavier_uniform_(matrix: Tensor, generator: torch.Generator) -> None:
    """Uniform within sqrt(6 / (fan in + fan out)) of a dense kernel."""
    nn.init.xavier_uniform_(matrix, generator=generator)


def lecun_normal_(kernel: Tensor, generator: torch.Generator) -> None:
    """Normal, cut at two standard deviations and rescaled so that its variance is 1 / fan in."""
    fan_in = kernel[0].numel()
    std = math.sqrt(1 / fan_in) / 0.87962566103423978  # std of a unit normal cut at +-2
    nn.init.trunc_normal_(kernel, std=std, a=-2 * std, b=2 * std, generator=generator)


def initialize_branch(branch: "Attention | Mlp", generator: torch.Generator, *, bias_std: float = 0.0) -> None:
    """Xavier's rule for every matrix of an attention or an MLP, each third of qkv by itself; biases of attention are 0,
    those of an MLP normal with `bias_std`."""
    if isinstance(branch, Attention):
        for matrix in (*branch.qkv.weight.chunk(3), branch.out.weight):
            xavier_uniform_(matrix, generator)
        for bias in (branch.qkv.bias, branch.out.bias):
            nn.init.zeros_(bias) if bias is not None else None
        return
    for dense in (branch.fc1, branch.fc2):
        xavier_uniform_(dense.weight, generator)
        nn.init.normal_(dense.bias, std=bias_std, generator=generator) if bias_std else nn.init.zeros_(dense.bias)

"""Adopting a ViT: where its blocks, norms and attention are, under whatever names, and taps with ours."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.adoption.errors import AdoptionError
from sightline.adoption.preprocessing import library, size_of, spec_of
from sightline.adoption.wrapper import AdoptedModel, Facts, Hook, first_logits, wired
from sightline.models.layers import attention
from sightline.models.parts import Part, block_parts
from sightline.models.taps import Tap
from sightline.spec import Features, ImageSpec

NORM1, NORM2 = ("norm1", "ln_1", "layernorm_before"), ("norm2", "ln_2", "layernorm_after")
ATTENTION = ("attn", "self_attention", "attention")
ATTENTION_BRANCH = ("drop_path1", "ls1", "layer_scale1", *ATTENTION)
MLP_BRANCH = ("drop_path2", "ls2", "layer_scale2", "mlp")
HIDDEN = ("act", "activation_fn", "1")  # inside the MLP: timm, transformers, torchvision
LAST_NORM = ("norm", "ln", "layernorm")
EMBED = ("patch_embed.proj", "conv_proj", "embeddings.patch_embeddings.projection")
HEADS = ("head", "heads", "classifier", "cls_classifier")
CLOSE = 1e-3  # of the largest value, between what is added and its sum


@dataclass(frozen=True)
class Blocks:
    """The encoder of a model."""

    blocks: list[nn.Module]
    norm: nn.Module
    embed: nn.Conv2d
    first: nn.Module  # what the tokens enter first


def pick(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """The first of these children, by path, that is there."""
    modules = dict(module.named_modules())
    return next((modules[n] for n in names if n in modules), None)


def find_blocks(module: nn.Module) -> list[nn.Module] | None:
    """The longest row of siblings that each have two norms, attention and an MLP; None where there is no attention."""
    best: list[nn.Module] | None = None
    for parent in module.modules():
        row = [c for c in parent.children() if pick(c, ATTENTION) is not None and pick(c, NORM1) is not None]
        if row and len(row) == len(list(parent.children())) and len(row) > len(best or ()):
            best = row
    return best


def find_encoder(module: nn.Module) -> Blocks:
    """Everything that is needed, or what is missing."""
    blocks = find_blocks(module) or []
    norms = [(path, m) for path, m in module.named_modules() if path.split(".")[-1] in LAST_NORM]
    last = [m for path, m in sorted(norms, key=lambda n: n[0].count(".")) if path.count(".") <= 1]
    embed = next((m for path, m in module.named_modules() if path.endswith(EMBED)), None)
    missing = []
    for what, names in (("norm", NORM2), ("MLP", ("mlp",))):
        if not all(pick(b, names) is not None for b in blocks):
            missing.append(f"a second {what} in each block ({', '.join(names)})")
    if not last:
        missing.append(f"a last norm ({', '.join(LAST_NORM)})")
    if not isinstance(embed, nn.Conv2d):
        missing.append(f"a patch embedding ({', '.join(EMBED)})")
    if missing:
        raise AdoptionError(f"A {type(module).__name__} cannot be adopted: it lacks {'; '.join(missing)}.")
    assert isinstance(embed, nn.Conv2d)
    return Blocks(blocks, last[0], embed, blocks[0])


def query_key_value(block: nn.Module, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the attention of a block makes of its normalized input, (b, h, n, d) each."""
    attn: Any = pick(block, ATTENTION)
    if hasattr(attn, "qkv"):  # timm
        q, k, v = F.linear(y, attn.qkv.weight, attn.qkv.bias).chunk(3, dim=-1)
        heads = attn.num_heads
    elif hasattr(attn, "in_proj_weight"):  # torchvision
        q, k, v = F.linear(y, attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
        heads = attn.num_heads
    else:
        inside = getattr(attn, "attention", attn)  # transformers 4 has one more level
        layers = _three(inside)
        q, k, v = (F.linear(y, layer.weight, layer.bias) for layer in layers)
        heads = q.shape[-1] // _head_width(inside)
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    for name, norm in (("q_norm", getattr(attn, "q_norm", None)), ("k_norm", getattr(attn, "k_norm", None))):
        if norm is not None:
            q, k = (norm(q), k) if name == "q_norm" else (q, norm(k))
    return q, k, v


def _three(attn: Any) -> list[nn.Linear]:
    for names in (("q_proj", "k_proj", "v_proj"), ("query", "key", "value")):
        found = [f for n in names if isinstance(f := getattr(attn, n, None), nn.Linear)]
        if len(found) == 3:
            return found
    raise AdoptionError(f"A {type(attn).__name__} cannot be adopted: it lacks query, key and value layers.")


def _head_width(attn: Any) -> int:
    for name in ("head_dim", "attention_head_size"):
        if isinstance(getattr(attn, name, None), int):
            return getattr(attn, name)
    raise AdoptionError(f"A {type(attn).__name__} cannot be adopted: it does not say how wide a head is.")


class Spy(nn.Module):
    """Taps with the names of our own block, fed from someone else's."""

    def __init__(self, block: nn.Module):
        super().__init__()
        object.__setattr__(self, "block", block)  # looked at, not owned: `inner` owns it
        self.attn_skip, self.norm1, self.attn_branch, self.attn_sum = Tap(), Tap(), Tap(), Tap()
        self.attn = nn.ModuleDict({name: Tap() for name in ("q", "k", "v", "probs", "per_head")})
        self.norm2, self.mlp_branch, self.mlp_sum = Tap(), Tap(), Tap()
        self.mlp = nn.ModuleDict({"hidden": Tap()})

    def wires(self) -> Iterator[Hook]:
        block: nn.Module = self.block  # type: ignore[assignment]
        mlp: Any = pick(block, ("mlp",))
        places: list[tuple[Tap, nn.Module | None, Literal["in", "out"]]] = [
            (self.attn_skip, block, "in"),
            (self.norm1, pick(block, NORM1), "out"),
            (self.attn_branch, pick(block, ATTENTION_BRANCH), "out"),
            (self.attn_sum, pick(block, NORM2), "in"),
            (self.norm2, pick(block, NORM2), "out"),
            (self.mlp["hidden"], pick(mlp, HIDDEN), "out"),  # type: ignore[list-item]
            (self.mlp_branch, pick(block, MLP_BRANCH), "out"),
            (self.mlp_sum, block, "out"),
        ]
        for tap, module, side in places:
            if tap.watched and module is not None:
                yield module, side, tap
        if any(tap.watched for tap in self.attn.values()):
            norm1 = pick(block, NORM1)
            assert norm1 is not None
            yield norm1, "out", self.attend

    def attend(self, y: Tensor) -> None:
        """Spell the attention out beside the model's own fused one."""
        q, k, v = query_key_value(self.block, y)  # type: ignore[arg-type]
        found, probs = attention(q, k, v, scale=q.shape[-1] ** -0.5)
        for name, tensor in {"q": q, "k": k, "v": v, "probs": probs, "per_head": found}.items():
            self.attn[name](tensor)


class AdoptedViT(AdoptedModel):
    """A ViT of another library."""

    def __init__(self, inner: nn.Module, found: Blocks, **about: Any):
        super().__init__(inner, **about)
        object.__setattr__(self, "found", found)
        self.embed, self.encoder_input, self.norm = Tap(), Tap(), Tap()
        self.blocks = nn.ModuleList(Spy(b) for b in found.blocks)

    @classmethod
    def take(cls, module: nn.Module, image: ImageSpec | None) -> "AdoptedViT":
        """Find out what it is, send one image through, and check what was found."""
        found = find_encoder(module)
        size = image.size if image else size_of(module)
        channels = next(m.in_channels for m in module.modules() if isinstance(m, nn.Conv2d))
        patch = (found.embed.stride[0], found.embed.stride[1])
        backbone = max(1, _reduction(module, found, size, channels))
        cell = (patch[0] * backbone, patch[1] * backbone)
        grid = (size[0] // cell[0], size[1] // cell[1])
        tokens, logits = _try(module, found, size, channels)
        prefix = tokens.shape[1] - grid[0] * grid[1]
        if tokens.ndim != 3 or not 0 <= prefix < 64:
            raise AdoptionError(
                f"A {type(module).__name__} cannot be adopted: {tuple(tokens.shape)} behind its last norm are not "
                f"{grid[0]} x {grid[1]} patches and a few prefix tokens."
            )
        head = _head(module)
        y = torch.zeros(1, 2, tokens.shape[-1], dtype=tokens.dtype, device=tokens.device)
        config = Facts(
            library=library(module),
            kind="vit",
            size=size,
            width=tokens.shape[-1],
            depth=len(found.blocks),
            classes=logits.shape[-1] if head is not None else 0,
            channels=channels,
            grid=grid,
            prefix=prefix,
            heads=query_key_value(found.blocks[0], y)[0].shape[1],
            patch=cell,
            pool="cls" if prefix else "gap",
        )
        spec = image or spec_of(module, size, channels)
        made = cls(module, found, config=config, image=spec, parts=tuple(_parts(config)))
        made.verify()
        return made

    def verify(self) -> None:
        """Sums must be the sums of what we take for their parts, and the heads' results what the block really uses."""
        c = self.config
        x = torch.linspace(-1, 1, c.channels * c.size[0] * c.size[1]).reshape(1, c.channels, *c.size)
        x = x.to(next(self.inner.parameters()))
        last = self.blocks[-1]
        assert isinstance(last, Spy)
        names = ("attn_skip", "attn_branch", "attn_sum", "mlp_branch", "mlp_sum")
        said: dict[str, Tensor] = {}
        block: nn.Module = last.block  # type: ignore[assignment]
        out = pick(block, ("attn.proj", "attention.o_proj", "attention.output.dense"))
        handles = [getattr(last, n).register_forward_hook(_keep(said, n)) for n in names]
        handles.append(last.attn["per_head"].register_forward_hook(_keep(said, "per_head")))
        try:
            with wired([(out, "in", lambda t: said.update(merged=t))] if out is not None else []):
                self.forward(x)
        finally:
            for handle in handles:
                handle.remove()
        pairs = [(said["attn_skip"] + said["attn_branch"], said["attn_sum"], "attention")]
        pairs.append((said["attn_sum"] + said["mlp_branch"], said["mlp_sum"], "MLP"))
        if "merged" in said:
            merged = said["per_head"].transpose(1, 2).flatten(2)
            pairs.append((merged, said["merged"].reshape(merged.shape), "heads"))
        for parts, whole, what in pairs:
            if not (parts - whole).abs().max() <= CLOSE * whole.abs().max().clamp(min=1e-6):
                kind = type(self.inner).__name__
                raise AdoptionError(f"A {kind} cannot be adopted: its {what} branch is not that of a pre-norm ViT.")

    def wires(self) -> list[Hook]:
        found: Blocks = self.found  # type: ignore[assignment]
        hooks: list[Hook] = [h for spy in self.blocks for h in spy.wires()]  # type: ignore[operator]
        if self.embed.watched:
            hooks.append((found.embed, "out", lambda t: self.embed(t.flatten(2).mT)))
        if self.encoder_input.watched:
            hooks.append((found.first, "in", self.encoder_input))
        if self.norm.watched:
            hooks.append((found.norm, "out", self.norm))
        return hooks

    def tokens_at(self) -> tuple[nn.Module, Literal["in", "out"]]:
        return self.found.norm, "out"  # type: ignore[return-value]

    def classifier_at(self) -> nn.Module | None:
        return _head(self.inner)

    def arranged(self, last: Tensor, pooled: Tensor, size: tuple[int, int]) -> Features:
        patch = self.config.patch
        assert patch is not None
        grid, p = (size[0] // patch[0], size[1] // patch[1]), self.config.prefix
        return Features(tokens=last[:, p:], grid=grid, prefix=last[:, :p], pooled=pooled)


def _keep(said: dict[str, Tensor], name: str) -> Any:
    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        said[name] = output

    return keep


def _head(module: nn.Module) -> nn.Module | None:
    """The layer that makes logits, if it makes any."""
    head = next((getattr(module, n) for n in HEADS if isinstance(getattr(module, n, None), nn.Module)), None)
    return None if head is None or isinstance(head, nn.Identity) else head


def _try(module: nn.Module, found: Blocks, size: tuple[int, int], channels: int) -> tuple[Tensor, Tensor]:
    first = next(module.parameters())
    x = torch.zeros(1, channels, *size, dtype=first.dtype, device=first.device)
    said: dict[str, Tensor] = {}
    with wired([(found.norm, "out", lambda t: said.update(tokens=t))]):
        try:
            out = first_logits(module(x))
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise AdoptionError(
                f"A {type(module).__name__} does not take images of {size[0]} x {size[1]} ({reason}): "
                "give image=ImageSpec(size=...)."
            ) from error
    if "tokens" not in said:
        raise AdoptionError(f"A {type(module).__name__} cannot be adopted: its last norm does not run.")
    return said["tokens"], out


def _hybrid(module: nn.Module) -> bool:
    return hasattr(getattr(module, "patch_embed", None), "backbone")


def _reduction(module: nn.Module, found: Blocks, size: tuple[int, int], channels: int) -> int:
    """How much a backbone reduces the image before the patch embedding sees it."""
    if not _hybrid(module):
        return 1
    first = next(module.parameters())
    seen: list[int] = []
    with wired([(found.embed, "in", lambda t: seen.append(t.shape[2]))]):
        module(torch.zeros(1, channels, *size, dtype=first.dtype, device=first.device))
    return size[0] // seen[0]


def _parts(c: Facts) -> Iterator[Part]:
    yield Part(path="embed", kind="embed", layout="tokens")
    yield Part(path="encoder_input", kind="input", layout="tokens")
    for i in range(c.depth):
        yield from block_parts(f"blocks.{i}.", i, pre=True)
    yield Part(path="norm", kind="norm", layout="tokens")
    yield Part(path="pooled", kind="pooled", layout="vector")
    if c.classes:
        yield Part(path="head", kind="logits", layout="vector")

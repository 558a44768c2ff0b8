"""Adopting a ViT: finds its blocks, norms and attention, whatever their names, and gives them taps with our names."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sightline.adoption.attention import AttentionFeed
from sightline.adoption.preprocessing import library, size_of, spec_of
from sightline.adoption.wrapper import AdoptedConfig, AdoptedModel, AdoptionError, Hook, first_logits, temporary_hooks
from sightline.models.parts import Part, block_parts
from sightline.models.taps import Tap
from sightline.spec import Features, ImageSpec

NORM1, NORM2 = ("norm1", "ln_1", "layernorm_before"), ("norm2", "ln_2", "layernorm_after")
ATTENTION = ("attn", "self_attention", "attention")
ATTENTION_BRANCH = ("drop_path1", "ls1", "layer_scale1", *ATTENTION)
MLP_BRANCH = ("drop_path2", "ls2", "layer_scale2", "mlp")
# what takes the heads' outputs, merged: EVA-02 has a norm before the projection
MERGED = ("attn.norm", "attn.proj", "attention.o_proj", "attention.output.dense")
HIDDEN = ("act", "activation_fn", "1")  # inside the MLP: timm, transformers, torchvision
LAST_NORM = ("norm", "ln", "layernorm")
EMBED = ("patch_embed.proj", "conv_proj", "embeddings.patch_embeddings.projection")
HEADS = ("head", "heads", "classifier", "cls_classifier")
CLOSE = 1e-3  # relative difference allowed between a sum and its summands


@dataclass(frozen=True)
class Blocks:
    """The encoder of a model."""

    blocks: list[nn.Module]
    norm: nn.Module
    embed: nn.Conv2d
    first: nn.Module  # the first module that the tokens enter


def find_child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """The first of these children, by path, that exists."""
    modules = dict(module.named_modules())
    return next((modules[n] for n in names if n in modules), None)


def find_blocks(module: nn.Module) -> list[nn.Module] | None:
    """The longest sequence of siblings that each have two norms, attention and an MLP; None without attention."""
    best: list[nn.Module] | None = None
    for parent in module.modules():
        row = [
            c for c in parent.children() if find_child(c, ATTENTION) is not None and find_child(c, NORM1) is not None
        ]
        if row and len(row) == len(list(parent.children())) and len(row) > len(best or ()):
            best = row
    return best


def find_encoder(module: nn.Module) -> Blocks:
    """The encoder of a ViT; AdoptionError says what is missing."""
    blocks = find_blocks(module) or []
    norms = [(path, m) for path, m in module.named_modules() if path.split(".")[-1] in LAST_NORM]
    last = [m for path, m in sorted(norms, key=lambda n: n[0].count(".")) if path.count(".") <= 1]
    embed = next((m for path, m in module.named_modules() if path.endswith(EMBED)), None)
    missing = []
    for what, names in (("norm", NORM2), ("MLP", ("mlp",))):
        if not all(find_child(b, names) is not None for b in blocks):
            missing.append(f"a second {what} in each block ({', '.join(names)})")
    if not last:
        missing.append(f"a last norm ({', '.join(LAST_NORM)})")
    if not isinstance(embed, nn.Conv2d):
        missing.append(f"a patch embedding ({', '.join(EMBED)})")
    if missing:
        raise AdoptionError(f"A {type(module).__name__} cannot be adopted: it lacks {'; '.join(missing)}.")
    assert isinstance(embed, nn.Conv2d)
    return Blocks(blocks, last[0], embed, blocks[0])


def head_count(block: nn.Module, seen: int) -> int:
    """Number of heads: as observed or, if the attention cannot be observed, as the module states."""
    attn: Any = find_child(block, ATTENTION)
    named = (getattr(part, n, None) for part in attn.modules() for n in ("num_heads", "num_attention_heads"))
    heads = seen or next((n for n in named if isinstance(n, int)), 0)
    if not heads:
        raise AdoptionError(f"A {type(attn).__name__} cannot be adopted: it does not say how many heads it has.")
    return heads


def hidden_place(mlp: nn.Module) -> tuple[nn.Module | None, Literal["in", "out"]]:
    """Where the neurons of an MLP are seen: after the activation; in a gated MLP before the last layer."""
    act, last = find_child(mlp, HIDDEN), find_child(mlp, ("fc2",))
    return (last, "in") if is_gated(mlp) else (act, "out")


def is_gated(mlp: nn.Module) -> bool:
    """Whether one half of the hidden layer multiplies the other (SwiGLU), by the sizes of its layers."""
    first, last = find_child(mlp, ("fc1", "fc1_g")), find_child(mlp, ("fc2",))
    if not isinstance(first, nn.Linear) or not isinstance(last, nn.Linear):
        return False
    return first.out_features != last.in_features or find_child(mlp, ("fc1_g",)) is not None


class BlockTaps(nn.Module):
    """Taps with the names of our own block, fed from a block of another library."""

    def __init__(self, block: nn.Module):
        super().__init__()
        object.__setattr__(self, "block", block)  # a reference: `inner` owns the block
        self.attn_skip, self.norm1, self.attn_branch, self.attn_sum = Tap(), Tap(), Tap(), Tap()
        self.attn = nn.ModuleDict({name: Tap() for name in ("q", "k", "v", "probs", "per_head")})
        self.norm2, self.mlp_branch, self.mlp_sum = Tap(), Tap(), Tap()
        self.mlp = nn.ModuleDict({"hidden": Tap()})

    def tap_hooks(self) -> Iterator[Hook]:
        block: nn.Module = self.block  # type: ignore[assignment]
        mlp: Any = find_child(block, ("mlp",))
        places: list[tuple[Tap, nn.Module | None, Literal["in", "out"]]] = [
            (self.attn_skip, block, "in"),
            (self.norm1, find_child(block, NORM1), "out"),
            (self.attn_branch, find_child(block, ATTENTION_BRANCH), "out"),
            (self.attn_sum, find_child(block, NORM2), "in"),
            (self.norm2, find_child(block, NORM2), "out"),
            (self.mlp["hidden"], *hidden_place(mlp)),  # type: ignore[list-item]
            (self.mlp_branch, find_child(block, MLP_BRANCH), "out"),
            (self.mlp_sum, block, "out"),
        ]
        for tap, module, side in places:
            if tap.watched and module is not None:
                yield module, side, tap

    @property
    def attention_watched(self) -> bool:
        return any(tap.watched for tap in self.attn.values())


class AdoptedViT(AdoptedModel):
    """A ViT of another library."""

    taps: type[nn.Module] = BlockTaps

    def __init__(self, inner: nn.Module, encoder: Blocks, **about: Any):
        super().__init__(inner, **about)
        object.__setattr__(self, "found", encoder)
        self.embed, self.encoder_input, self.norm = Tap(), Tap(), Tap()
        self.blocks = nn.ModuleList(self.taps(b) for b in encoder.blocks)

    @classmethod
    def from_module(cls, module: nn.Module, image: ImageSpec | None) -> "AdoptedViT":
        """Adopt a module: find its encoder, pass one image through it, and verify the result."""
        encoder = find_encoder(module)
        size = image.size if image else size_of(module)
        channels = next(m.in_channels for m in module.modules() if isinstance(m, nn.Conv2d))
        patch = (encoder.embed.stride[0], encoder.embed.stride[1])
        backbone = max(1, _reduction(module, encoder, size, channels))
        cell = (patch[0] * backbone, patch[1] * backbone)
        grid = (size[0] // cell[0], size[1] // cell[1])
        tokens, logits, seen = run_blank_image(module, encoder, size, channels)
        heads = head_count(encoder.blocks[0], seen)
        prefix = tokens.shape[1] - grid[0] * grid[1]
        if tokens.ndim != 3 or not 0 <= prefix < 64:
            raise AdoptionError(
                f"A {type(module).__name__} cannot be adopted: {tuple(tokens.shape)} after its last norm are not "
                f"{grid[0]} x {grid[1]} patches and a few prefix tokens."
            )
        head, first = find_head(module), _has_class_token(module, prefix)
        config = AdoptedConfig(
            library=library(module),
            kind="vit",
            size=size,
            width=tokens.shape[-1],
            depth=len(encoder.blocks),
            classes=logits.shape[-1] if head is not None else 0,
            channels=channels,
            grid=grid,
            prefix=prefix,
            heads=heads,
            patch=cell,
            pool="cls" if first and getattr(module, "global_pool", "token") in ("token", "") else "gap",
            class_token=first,
        )
        spec = image or spec_of(module, size, channels)
        made = cls(module, encoder, config=config, image=spec, parts=tuple(_parts(config)))
        made.verify()
        return made

    def verify(self) -> None:
        """Check that skips and branches add up to the sums, and that the heads' outputs are the projection's input."""
        last: Any = self.blocks[-1]
        names = ("attn_skip", "attn_branch", "attn_sum", "mlp_branch", "mlp_sum")
        seen: dict[str, Tensor] = {}
        block: nn.Module = last.block
        out = find_child(block, MERGED)
        taps = {getattr(last, n): n for n in names} | {last.attn["per_head"]: "per_head"}
        joined: list[Hook] = [(out, "in", lambda t: seen.update(merged=t))] if out is not None else []
        with watch(taps, seen), temporary_hooks(joined):
            self.forward(self.ramp())
        pairs = [(seen["attn_skip"] + seen["attn_branch"], seen["attn_sum"], "attention")]
        pairs.append((seen["attn_sum"] + seen["mlp_branch"], seen["mlp_sum"], "MLP"))
        if "merged" in seen and "per_head" in seen:
            merged = seen["per_head"].transpose(1, 2).flatten(2)
            pairs.append((merged, seen["merged"].reshape(merged.shape), "heads"))
        kind = type(self.inner).__name__
        check_sums(pairs, f"A {kind} cannot be adopted: its {{}} branch is not that of a pre-norm ViT.")

    def ramp(self) -> Tensor:
        """An image to verify with."""
        c = self.config
        x = torch.linspace(-1, 1, c.channels * c.size[0] * c.size[1]).reshape(1, c.channels, *c.size)
        return x.to(next(self.inner.parameters()))

    def tap_hooks(self) -> list[Hook]:
        encoder: Blocks = self.found  # type: ignore[assignment]
        hooks: list[Hook] = [h for spy in self.blocks for h in spy.tap_hooks()]  # type: ignore[operator]
        if self.embed.watched:
            hooks.append((encoder.embed, "out", lambda t: self.embed(t.flatten(2).mT)))
        if self.encoder_input.watched:
            hooks.append((encoder.first, "in", self.encoder_input))
        if self.norm.watched:
            hooks.append((encoder.norm, "out", self.norm))
        return hooks

    @contextmanager
    def interception(self) -> Iterator[None]:
        """Feed the attention taps from the model's own calls while they are recorded."""
        blocks: Any = self.blocks
        if not any(taps.attention_watched for taps in blocks):
            yield
            return
        feed = AttentionFeed(
            lambda block, name, tensor: blocks[block].attn[name](tensor),
            lambda block: blocks[block].attn["probs"].watched,
        )
        object.__setattr__(self, "attention", feed)  # its `error` is read afterwards
        with temporary_hooks(_block_hooks(feed, self.found.blocks)), feed.mode():  # type: ignore[union-attr, arg-type]
            yield

    def last_layer(self) -> tuple[nn.Module, Literal["in", "out"]]:
        return self.found.norm, "out"  # type: ignore[return-value]

    def classifier_layer(self) -> nn.Module | None:
        return find_head(self.inner)

    def to_features(self, last: Tensor, pooled: Tensor, size: tuple[int, int]) -> Features:
        patch = self.config.patch
        assert patch is not None
        grid, p = (size[0] // patch[0], size[1] // patch[1]), self.config.prefix
        return Features(tokens=last[:, p:], grid=grid, prefix=last[:, :p], pooled=pooled)


@contextmanager
def watch(taps: dict[nn.Module, str], seen: dict[str, Tensor]) -> Iterator[None]:
    """Keep what passes these taps, by name, while the context is open."""

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        seen[taps[module]] = output

    handles = [tap.register_forward_hook(keep) for tap in taps]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_sums(pairs: list[tuple[Tensor, Tensor, str]], message: str) -> None:
    """Refuse what differs; the message has a place for what it is."""
    for parts, whole, what in pairs:
        if not (parts - whole).abs().max() <= CLOSE * whole.abs().max().clamp(min=1e-6):
            raise AdoptionError(message.format(what))


def _has_class_token(module: nn.Module, prefix: int) -> bool:
    """Whether the first prefix token is a class token: by the names of parameters, since registers alone are none."""
    names = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
    named = any("cls" in name or "class" in name for name in names)
    return prefix > 0 and (named or not any("reg" in name for name in names))


def find_head(module: nn.Module) -> nn.Module | None:
    """The layer that outputs the logits, if there is one."""
    head = next((getattr(module, n) for n in HEADS if isinstance(getattr(module, n, None), nn.Module)), None)
    return None if head is None or isinstance(head, nn.Identity) else head


def run_blank_image(
    module: nn.Module, encoder: Blocks, size: tuple[int, int], channels: int
) -> tuple[Tensor, Tensor, int]:
    """The last tokens, the output and the number of heads for one blank image; 0 heads if none are seen."""
    first = next(module.parameters())
    x = torch.zeros(1, channels, *size, dtype=first.dtype, device=first.device)
    seen: dict[str, Tensor] = {}
    heads: list[int] = []
    feed = AttentionFeed(lambda block, name, tensor: heads.append(tensor.shape[1]), lambda block: False)
    hooks = [(encoder.norm, "out", lambda t: seen.update(tokens=t)), *_block_hooks(feed, encoder.blocks[:1])]
    with temporary_hooks(hooks), feed.mode():
        try:
            out = first_logits(module(x))
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise AdoptionError(
                f"A {type(module).__name__} does not take images of {size[0]} x {size[1]} ({reason}): "
                "give image=ImageSpec(size=...)."
            ) from error
    if "tokens" not in seen:
        raise AdoptionError(f"A {type(module).__name__} cannot be adopted: its last norm does not run.")
    return seen["tokens"], out, heads[0] if heads else 0


def _block_hooks(feed: AttentionFeed, blocks: list[nn.Module]) -> list[Hook]:
    """Tell the feed which block is running."""
    entered: list[Hook] = [(block, "in", partial(feed.enter, i)) for i, block in enumerate(blocks)]
    return [*entered, *((block, "out", lambda t: feed.leave()) for block in blocks)]


def _hybrid(module: nn.Module) -> bool:
    return hasattr(getattr(module, "patch_embed", None), "backbone")


def _reduction(module: nn.Module, encoder: Blocks, size: tuple[int, int], channels: int) -> int:
    """The stride of a hybrid's backbone, before the patch embedding."""
    if not _hybrid(module):
        return 1
    first = next(module.parameters())
    seen: list[int] = []
    with temporary_hooks([(encoder.embed, "in", lambda t: seen.append(t.shape[2]))]):
        module(torch.zeros(1, channels, *size, dtype=first.dtype, device=first.device))
    return size[0] // seen[0]


def _parts(c: AdoptedConfig) -> Iterator[Part]:
    yield Part(path="embed", kind="embed", layout="tokens")
    yield Part(path="encoder_input", kind="input", layout="tokens")
    for i in range(c.depth):
        yield from block_parts(f"blocks.{i}.", i, pre=True)
    yield Part(path="norm", kind="norm", layout="tokens")
    yield Part(path="pooled", kind="pooled", layout="vector")
    if c.classes:
        yield Part(path="head", kind="logits", layout="vector")

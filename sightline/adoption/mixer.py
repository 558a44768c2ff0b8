"""Adopting an MLP-Mixer of timm: its two MLPs per block, gated or not, get taps with our names."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sightline.adoption.preprocessing import library, size_of, spec_of
from sightline.adoption.transformer import (
    AdoptedViT,
    Blocks,
    check_sums,
    find_child,
    find_head,
    hidden_place,
    run_blank_image,
    watch,
)
from sightline.adoption.wrapper import AdoptedConfig, AdoptionError, Hook
from sightline.models.parts import Part, mixer_block_parts
from sightline.models.taps import Tap
from sightline.spec import ImageSpec

PARTS = ("norm1", "mlp_tokens", "norm2", "mlp_channels")


def find_mixer_blocks(module: nn.Module) -> list[nn.Module] | None:
    """The longest sequence of siblings that each have two norms and an MLP for tokens and for channels."""
    best: list[nn.Module] | None = None
    for parent in module.modules():
        row = list(parent.children())
        if (
            row
            and all(find_child(c, (name,)) is not None for c in row for name in PARTS)
            and len(row) > len(best or ())
        ):
            best = row
    return best


def refuse_other_mlps(module: nn.Module) -> None:
    """Refuse ResMLP and gMLP: they have an MLP for channels, and other parts than a second MLP for patches."""
    if any(path.rsplit(".", 1)[-1] == "mlp_channels" for path, _ in module.named_modules()):
        raise AdoptionError(
            f"A {type(module).__name__} without a norm and an MLP for patches in each block (ResMLP, gMLP) cannot be "
            "adopted. MLP-Mixer and gMixer can be; sl.record still records the output of any of its modules."
        )


class MixerTaps(nn.Module):
    """Taps with the names of our own Mixer block, fed from timm's."""

    attention_watched = False  # there is none

    def __init__(self, block: nn.Module):
        super().__init__()
        object.__setattr__(self, "block", block)  # a reference: `inner` owns the block
        self.mix_skip, self.norm1, self.mix_branch, self.mix_sum = Tap(), Tap(), Tap(), Tap()
        self.norm2, self.mlp_branch, self.mlp_sum = Tap(), Tap(), Tap()
        self.mix, self.mlp = (nn.ModuleDict({"hidden": Tap()}) for _ in range(2))

    def tap_hooks(self) -> Iterator[Hook]:
        block: nn.Module = self.block  # type: ignore[assignment]
        norm1, tokens, norm2, channels = (block.get_submodule(name) for name in PARTS)
        places: list[tuple[Any, nn.Module | None, Literal["in", "out"]]] = [
            (self.mix_skip, block, "in"),
            (self.norm1, norm1, "out"),
            (self.mix["hidden"], *hidden_place(tokens)),
            (self.mix_branch, tokens, "out"),
            (self.mix_sum, norm2, "in"),
            (self.norm2, norm2, "out"),
            (self.mlp["hidden"], *hidden_place(channels)),
            (self.mlp_branch, channels, "out"),
            (self.mlp_sum, block, "out"),
        ]
        for tap, module, side in places:
            if tap.watched and module is not None:
                yield module, side, (lambda t: self.mix_branch(t.mT)) if tap is self.mix_branch else tap


class AdoptedMixer(AdoptedViT):
    """An MLP-Mixer of timm."""

    taps = MixerTaps

    @classmethod
    def from_module(cls, module: nn.Module, image: ImageSpec | None) -> "AdoptedMixer":
        """Adopt a module: find its blocks, pass one image through it, and verify the result."""
        blocks = find_mixer_blocks(module) or []
        name = type(module).__name__
        embed, norm = find_child(module, ("stem.proj",)), find_child(module, ("norm",))
        if not isinstance(embed, nn.Conv2d) or norm is None:
            raise AdoptionError(f"A {name} cannot be adopted: a Mixer has a patch embedding stem.proj and a last norm.")
        encoder = Blocks(blocks, norm, embed, blocks[0])
        size, channels = image.size if image else size_of(module), embed.in_channels
        patch = (embed.stride[0], embed.stride[1])
        grid = (size[0] // patch[0], size[1] // patch[1])
        tokens, logits, _ = run_blank_image(module, encoder, size, channels)
        if tokens.ndim != 3 or tokens.shape[1] != grid[0] * grid[1]:
            raise AdoptionError(
                f"A {name} cannot be adopted: {tuple(tokens.shape)} after its last norm are not {grid[0]} x {grid[1]} "
                "patches."
            )
        config = AdoptedConfig(
            library=library(module),
            kind="mixer",
            size=size,
            width=tokens.shape[-1],
            depth=len(blocks),
            classes=logits.shape[-1] if find_head(module) is not None else 0,
            channels=channels,
            grid=grid,
            patch=patch,
        )
        spec = image or spec_of(module, size, channels)
        made = cls(module, encoder, config=config, image=spec, parts=tuple(_parts(config)))
        made.verify()
        return made

    def verify(self) -> None:
        """Check that skips and branches add up to the sums."""
        last: Any = self.blocks[-1]
        seen: dict[str, Tensor] = {}
        names = ("mix_skip", "mix_branch", "mix_sum", "mlp_branch", "mlp_sum")
        with watch({getattr(last, name): name for name in names}, seen), torch.no_grad():
            self.forward(self.ramp())
        pairs = [(seen["mix_skip"] + seen["mix_branch"], seen["mix_sum"], "token-mixing")]
        pairs.append((seen["mix_sum"] + seen["mlp_branch"], seen["mlp_sum"], "channel-mixing"))
        check_sums(pairs, f"A {type(self.inner).__name__} cannot be adopted: its {{}} branch is not that of a Mixer.")


def _parts(c: AdoptedConfig) -> Iterator[Part]:
    yield Part(path="embed", kind="embed", layout="tokens")
    yield Part(path="encoder_input", kind="input", layout="tokens")
    for i in range(c.depth):
        yield from mixer_block_parts(f"blocks.{i}.", i)
    yield Part(path="norm", kind="norm", layout="tokens")
    yield Part(path="pooled", kind="pooled", layout="vector")
    if c.classes:
        yield Part(path="head", kind="logits", layout="vector")

"""Where attention leads through all layers: rollout, gradient rollout, and the maps of single heads."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.interval import Ends, known_ends, of_mean
from sightline.evals.prediction import noting_predictions
from sightline.observe.attention import attention_probs
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class AttentionMaps(Result):
    """Maps over the patches of each image: one per image (rollout), or one per image and head.

    >>> import numpy as np
    >>> r = sl.analysis.AttentionMaps(title="", caption="", maps=np.full((1, 2, 2), 0.2), image_size=(8, 8))
    >>> round(r.summary()["mass on patches"], 3)
    0.8
    """

    maps: NDArray[np.float32]  # (images, rows, columns) or (images, heads, rows, columns)
    image_size: tuple[int, int]
    images: NDArray[np.uint8] | None = None  # (images, height, width, 3), small, to show the maps on

    def summary(self) -> dict[str, float]:
        mass = self.maps.sum((-1, -2))
        peak = self.maps.max((-1, -2))
        return {"mass on patches": float(mass.mean()), "largest share of one patch": float((peak / mass).mean())}

    def intervals(self) -> dict[str, Ends]:
        mass, peak = self.maps.sum((-1, -2)), self.maps.max((-1, -2))
        each = {"mass on patches": mass, "largest share of one patch": peak / mass}
        return known_ends({k: of_mean(v.reshape(len(v), -1).mean(1), least=0.0) for k, v in each.items()})

    def top_tenth(self) -> NDArray[np.float64]:
        """(images,): the share of a map's attention that the tenth of the patches with the most of it receives."""
        share = self.maps / np.maximum(self.maps.sum((-1, -2), keepdims=True), 1e-12)
        top = np.sort(share.reshape(*share.shape[:-2], -1), axis=-1)[..., ::-1]
        most = top[..., : max(1, top.shape[-1] // 10)].sum(-1)
        return np.asarray(most.reshape(len(most), -1).mean(1), dtype=np.float64)


def one_layer(mean: Float[Tensor, "b n n"], *, identity: bool) -> Float[Tensor, "b n n"]:
    """Heads averaged to one step of rollout, rows summing to 1. With identity, the skip counts as much as attention."""
    if identity:
        mean = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    return mean / mean.sum(-1, keepdim=True)


def rollout(layers: Iterable[Float[Tensor, "b h n n"]], *, identity: bool = False) -> Float[Tensor, "b n n"]:
    """Attention of all layers, first to last, multiplied up: row i says where token i at the end comes from.

    Heads are averaged (ViT, appendix D.8). `identity` adds the skip connection and normalizes (Abnar & Zuidema 2020).

    >>> import torch
    >>> layers = torch.rand(3, 1, 2, 4, 4).softmax(-1)
    >>> sl.analysis.rollout(layers).sum(-1).round(decimals=4).tolist()
    [[1.0, 1.0, 1.0, 1.0]]
    """
    joint = None
    for probs in layers:
        step = one_layer(probs.mean(1), identity=identity)
        joint = step if joint is None else step @ joint
    if joint is None:
        raise ValueError("rollout needs the attention of at least one layer.")
    return joint


def gradient_rollout(
    layers: Iterable[Float[Tensor, "b h n n"]], gradients: Iterable[Float[Tensor, "b h n n"]]
) -> Float[Tensor, "b n n"]:
    """Rollout that follows one class: each layer's attention times its own gradient, positive part, plus the skip.

    >>> import torch
    >>> layers = torch.rand(3, 1, 2, 4, 4).softmax(-1)
    >>> sl.analysis.gradient_rollout(layers, torch.zeros_like(layers)).equal(torch.eye(4)[None])
    True
    """
    weighted = ((probs * g).clamp(min=0) for probs, g in zip(layers, gradients, strict=True))
    return rollout(weighted, identity=True)


def from_head(joint: Tensor, s: ObservedModel) -> Float[Tensor, "*b y x"]:
    """What the head looks through: the class token's row, or the mean of the patches' where it pools these."""
    rows = joint[..., 0, :] if s.pool == "cls" and s.prefix else joint[..., s.prefix :, :].mean(-2)
    return rows[..., s.prefix :].unflatten(-1, s.grid)


def attention_rollout(
    model: Model,
    data: Data,
    *,
    identity: bool = False,
    gradient: bool = False,
    targets: Tensor | None = None,
    n: int | None = None,
    batch: int = 8,
) -> AttentionMaps:
    """Rollout maps of images, seen from what the head sees: the paper's, with `identity`, or by `gradient`.

    `gradient` follows the class in `targets` (by default the one that is predicted); each layer's gradient is paired
    with its attention by block.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> sl.attention_rollout(model, sl.dataset("scenes/shape", num=3, size=32)).maps.shape
    (3, 8, 8)
    """
    s = observe(model)
    kind = "gradient" if gradient else "with identity" if identity else "as in the ViT paper"
    maps, shown, at = [], [], 0
    source = ImageSource(data=data, batch=batch, n=n)
    with evaluation_mode(s, gradients=gradient), noting_predictions(s) as said:
        for made in source.batches([s], what="rollout"):
            images = made.images[0]
            wanted = None if targets is None else targets[at : at + len(made)].to(images.device)
            joint, proof = rollout_of(s, images, wanted, identity=identity, gradient=gradient)
            maps.append(from_head(joint, s).detach().float().cpu())
            shown.append(source.shown(made, s))
            at += len(made)
    caption = f"Attention rollout ({kind}) over {len(s.attention_blocks)} blocks, seen from {_from(s)}. {proof}."
    return AttentionMaps(
        title=f"Rollout of {s.name}",
        caption=caption,
        how={"n": at, "kind": kind, "proof": proof, "tokens": _from(s), "predictions": said},
        about=source.about(s),
        maps=torch.cat(maps).numpy(),
        image_size=s.image.size,
        images=np.concatenate(shown),
    )


def rollout_of(
    s: ObservedModel, images: Tensor, targets: Tensor | None, *, identity: bool, gradient: bool
) -> tuple[Tensor, str]:
    """Rollout of one batch, and the proof of the tap. Layers and gradients are paired by block, not by order."""
    found: dict[int, Tensor] = {}
    keep = found.__setitem__ if gradient else _average(found)
    with attention_probs(s, keep) as taps:
        logits = s.model(images.requires_grad_(gradient))
    layers = [found[i] for i in sorted(found)]
    if not gradient:
        return rollout((a[:, None] for a in layers), identity=identity), taps.proof
    wanted = logits.argmax(1) if targets is None else targets
    # a block whose attention is switched off has no part in the answer: its gradient is zero
    grads = torch.autograd.grad(logits.gather(1, wanted[:, None]).sum(), layers, materialize_grads=True)
    return gradient_rollout(layers, grads), taps.proof


def attention_maps(
    model: Model, data: Data, *, block: int = -1, query: int | None = None, n: int | None = None, batch: int = 8
) -> AttentionMaps:
    """The attention of every head of one block, from what the head sees or from one patch (`query`), over the patches.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> sl.analysis.attention_maps(model, sl.dataset("scenes/shape", num=3, size=32), block=0).maps.shape
    (3, 4, 8, 8)
    """
    s = observe(model)
    depth = len(s.attention_blocks)
    if depth and not -depth <= block < depth:
        raise ValueError(f"{s.name} has blocks 0 to {depth - 1}; there is no block {block}.")
    cells = s.grid[0] * s.grid[1]
    if query is not None and not 0 <= query < cells:
        raise ValueError(f"{s.name} has patches 0 to {cells - 1}; there is no patch {query}.")
    maps: list[Tensor] = []
    shown: list[NDArray[np.uint8]] = []

    def keep(number: int, probs: Tensor) -> None:
        if number == block % depth:
            rows = (
                from_head(probs, s) if query is None else probs[..., s.prefix + query, s.prefix :].unflatten(-1, s.grid)
            )
            maps.append(rows.float().cpu())

    source = ImageSource(data=data, batch=batch, n=n)
    with evaluation_mode(s), attention_probs(s, keep) as taps, noting_predictions(s) as said:
        for made in source.batches([s], what="attention maps"):
            s.model(made.images[0])
            shown.append(source.shown(made, s))
    of = _from(s) if query is None else f"patch {query}"
    return AttentionMaps(
        title=f"Attention of block {block % depth} of {s.name}",
        caption=f"Attention of each head of block {block % depth} from {of} to the patches. {taps.proof}.",
        how={"n": sum(map(len, maps)), "block": block % depth, "query": of, "proof": taps.proof, "predictions": said},
        about=source.about(s),
        maps=torch.cat(maps).numpy(),
        image_size=s.image.size,
        images=np.concatenate(shown),
    )


def _average(found: dict[int, Tensor]) -> Any:
    def keep(block: int, probs: Tensor) -> None:
        found[block] = probs.mean(1)

    return keep


def _from(s: ObservedModel) -> str:
    return "the class token" if s.pool == "cls" and s.prefix else "the mean of the patches"

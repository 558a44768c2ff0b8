"""The analyses by name, and to which models each applies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.ablation import what_if
from sightline.analysis.attention.distance import attention_distance
from sightline.analysis.attention.head_attention import head_attention
from sightline.analysis.attention.head_subsets import head_subsets
from sightline.analysis.attention.position_content import position_content
from sightline.analysis.attention.rollout import attention_maps, attention_rollout
from sightline.analysis.biases import inductive_bias
from sightline.analysis.embeddings import patch_filters, position_similarity
from sightline.analysis.pca import feature_pca
from sightline.analysis.probes import layer_probes, token_probes
from sightline.analysis.receptive_fields import receptive_field
from sightline.analysis.residual import residual_ratios
from sightline.analysis.saliency.attribution import Method, attribution
from sightline.analysis.saliency.object_focus import object_focus
from sightline.analysis.similarity.block_similarity import block_similarity
from sightline.analysis.similarity.cka import BATCH_OF_WAYS as BATCH
from sightline.analysis.similarity.cka import cka
from sightline.analysis.similarity.localization import localization
from sightline.analysis.similarity.neighbors import neighbor_similarity
from sightline.analysis.similarity.pooling_comparison import pooling_comparison
from sightline.analysis.tokens.logit_lens import logit_lens
from sightline.analysis.tokens.outliers import outlier_tokens
from sightline.analysis.tokens.patching import activation_patching, choose_pairs
from sightline.analysis.tokens.registers import register_switch
from sightline.data.datasets import Dataset
from sightline.data.scenes.scenes import Scenes
from sightline.observe.identity import distinct_names, source
from sightline.observe.images import ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.provenance import training_of
from sightline.observe.readout import readout
from sightline.spec import Result

FEW = 32  # images of the analyses that keep a map of each, or run backwards
SHOWN = 4  # images that are kept to be looked through


@dataclass(frozen=True)
class Inspection:
    """What is looked at with what."""

    models: tuple[ObservedModel, ...]  # each observed once; every analysis shares the observation
    data: Dataset
    n: int
    seed: int

    @property
    def few(self) -> int:
        return min(self.n, FEW)

    @cached_property
    def part(self) -> Dataset:
        """The images of the probes."""
        whole = self.n >= len(self.data)
        return self.data if whole else self.data.subset(self.n / len(self.data), seed=self.seed)

    @cached_property
    def positions(self) -> Result | str:
        """The position embeddings of the first model, or why it has none."""
        try:
            return position_similarity(self.models[0])
        except ValueError as error:
            return str(error).rstrip(".")

    @cached_property
    def register(self) -> str:
        """The switch of a test-time register for the first model, or a sentence why it needs none."""
        try:
            return register_switch(self.models[0], self.data, n=min(self.n, 2 * FEW), seed=self.seed)
        except ValueError as error:
            return str(error).rstrip(".")

    @property
    def splittable_classes(self) -> NDArray[np.int64]:
        """Classes of which there is an image to learn from and one to test on."""
        return np.flatnonzero(np.bincount(self.part.labels) > 1)

    @cached_property
    def halves(self) -> tuple[Dataset, Dataset]:
        """To learn from and to test on: every second image of each known class."""
        each = [np.flatnonzero(self.part.labels == number) for number in self.splittable_classes]
        learn, test = (np.sort(np.concatenate([rows[side::2] for rows in each])) for side in (0, 1))
        return self.part.subset(indices=learn), self.part.subset(indices=test)


@dataclass(frozen=True)
class Analysis:
    """One entry: how to run it, and why it does not apply, if it does not."""

    run: Callable[[Inspection], Result]
    refuses: Callable[[Inspection], str | None] = lambda inspection: None


def _no_attention(inspection: Inspection) -> str | None:
    return None if inspection.models[0].attention_blocks else f"{inspection.models[0].name} has no attention"


def _no_encoder(inspection: Inspection) -> str | None:
    return None if inspection.models[0].encoder_blocks else f"{inspection.models[0].name} has no encoder blocks"


def _no_sums(inspection: Inspection) -> str | None:
    known = any(p.skip and p.branch for p in inspection.models[0].parts)
    return None if known else f"{inspection.models[0].name} does not say what its residual sums are made of"


def _no_positions(inspection: Inspection) -> str | None:
    return inspection.positions if isinstance(inspection.positions, str) else None


def _no_classes(inspection: Inspection) -> str | None:
    s = inspection.models[0]
    return None if s.part.get("head") or any(p.kind == "logits" for p in s.parts) else f"{s.name} has no classes"


def _no_rollout(inspection: Inspection) -> str | None:
    return _no_attention(inspection) or _no_classes(inspection)


def _no_readout(inspection: Inspection) -> str | None:
    try:
        readout(inspection.models[0])
    except ValueError as error:
        return str(error).rstrip(".")
    return None


def _no_register(inspection: Inspection) -> str | None:
    found = _no_attention(inspection) or inspection.register
    return None if found.startswith("register ") else found


def _no_pair(inspection: Inspection) -> str | None:
    """Patching needs two images that differ in their logits; a head that was never trained gives zeros."""
    s = inspection.models[0]
    if why := _no_classes(inspection):
        return why
    try:
        with evaluation_mode(s):
            choose_pairs(s, ImageSource(data=inspection.data, batch=8, n=8, seed=inspection.seed), 1)
    except ValueError as error:
        return str(error).rstrip(".")
    return None


def _one_image(inspection: Inspection) -> str | None:
    few = None if inspection.n > 1 else "one image does not tell position from content"
    return _no_attention(inspection) or few


def _not_vit_and_cnn(inspection: Inspection) -> str | None:
    vit, cnn = _vit_first(inspection)
    if vit.attention_blocks and any(p.stage is not None for p in cnn.parts) and not cnn.attention_blocks:
        return None
    return "it compares the heads of a ViT with the stages of a CNN"


def _too_few(inspection: Inspection) -> str | None:
    return None if inspection.n >= 4 else f"CKA needs at least 4 images; there are {inspection.n}"


def _no_objects(inspection: Inspection) -> str | None:
    source, _ = inspection.data.origins()
    if not isinstance(source, Scenes):
        return "the images have no masks; scenes have"
    if source.scene(0).target < 0:
        return "these scenes are not about one object"
    return _no_classes(inspection)


def _no_labels(inspection: Inspection) -> str | None:
    """Probes need one label per image, and at least two classes with an image to learn from and one to test on."""
    if inspection.data.labels.ndim != 1:
        return "the images have several labels each"
    known = len(inspection.splittable_classes)
    return None if known > 1 else f"{inspection.n} images hold {known} classes with two images or more; probes need two"


def _not_cls_and_gap(inspection: Inspection) -> str | None:
    kinds = [s.pool if s.attention_blocks else "cnn" for s in inspection.models]
    return _no_labels(inspection) or (
        None if sorted(kinds) == ["cls", "gap"] else "it compares a class-token ViT with one that averages its patches"
    )


def _vit_first(inspection: Inspection) -> tuple[ObservedModel, ObservedModel]:
    a, b = inspection.models[0], inspection.models[-1]
    return (a, b) if a.attention_blocks else (b, a)


def _positions(inspection: Inspection) -> Result:
    if isinstance(inspection.positions, str):
        raise ValueError(f"{inspection.positions}.")
    return inspection.positions


def _switches(s: ObservedModel) -> list[str]:
    return [f"{kind} {i}" for kind in ("block", "skip") for i in range(len(s.encoder_blocks))]


def _additions(s: ObservedModel) -> str | list[str]:
    """Where "before the addition" is asked: after attention, as in the paper, or after a Mixer's token mixing; an MLP
    sees its token alone."""
    found = [p.path for p in s.parts if p.kind == "sum" and p.sublayer in ("attention", "mixing")]
    return found or "blocks"


def _cka(inspection: Inspection, **choice: Any) -> Result:
    a, b = inspection.models[0], inspection.models[1] if len(inspection.models) > 1 else None
    settings: Any = {"batch": min(BATCH, inspection.n), "n": inspection.n, "seed": inspection.seed, "ways": "all"}
    return cka(a, b, inspection.data, **settings, **choice)


def _attribution(method: Method) -> Callable[[Inspection], Result]:
    return lambda t: attribution(t.models[0], t.data, method=method, n=min(t.n, FEW // 2), steps=8, seed=t.seed)


def _probes(inspection: Inspection) -> Result:
    return layer_probes({s.name: s for s in inspection.models}, *inspection.halves, shots=None)


def _token_probes(inspection: Inspection) -> Result:
    s = inspection.models[0]
    return token_probes(s, *inspection.halves, layers=[s.block_outputs[-1].path], shots=None)


def _pooling(inspection: Inspection) -> Result:
    cls, gap = sorted(inspection.models, key=lambda s: s.pool)
    return pooling_comparison(cls, gap, *inspection.halves, shots=None, seed=inspection.seed)


def _localization(t: Inspection, grid: tuple[int, int] | None = None) -> Result:
    return localization(t.models[0], t.data, grid=grid, batch=min(BATCH, t.n), n=t.n, seed=t.seed)


def _common_grid(t: Inspection) -> tuple[int, int]:
    """The coarser of both models' last grids: CKA with larger patches is another number."""
    a, b = (s.grid for s in (t.models[0], t.models[-1]))
    return min(a[0], b[0]), min(a[1], b[1])


def _with_reference(t: Inspection) -> Result:
    """Block by block, with the model that was trained on more images; where that is not known, with the second."""
    a, b = t.models
    seen = [found.images if (found := training_of(s.model)) else 0 for s in (a, b)]
    model, full = (b, a) if seen[0] > seen[1] > 0 else (a, b)
    return block_similarity({model.name: model}, full, t.data, batch=min(BATCH, t.n), n=t.n, seed=t.seed)


LOOK: dict[str, Analysis] = {
    "cka": Analysis(_cka, _too_few),
    "attention-distance": Analysis(
        lambda t: attention_distance(t.models[0], t.data, n=t.n, seed=t.seed), _no_attention
    ),
    "attention-maps": Analysis(lambda t: attention_maps(t.models[0], t.data, n=t.few), _no_attention),
    "head-attention": Analysis(
        lambda t: head_attention(t.models[0], t.data, n=min(t.n, SHOWN), seed=t.seed), _no_attention
    ),
    "logit-lens": Analysis(lambda t: logit_lens(t.models[0], t.data, n=t.few, seed=t.seed), _no_readout),
    "activation-patching": Analysis(lambda t: activation_patching(t.models[0], t.data, seed=t.seed), _no_pair),
    "outlier-tokens": Analysis(lambda t: outlier_tokens(t.models[0], t.data, n=t.n, seed=t.seed), _no_attention),
    "outlier-tokens-register": Analysis(
        lambda t: outlier_tokens(t.models[0], t.data, register=t.register, n=t.n, seed=t.seed), _no_register
    ),
    "position-content": Analysis(lambda t: position_content(t.models[0], t.data, n=t.n, seed=t.seed), _one_image),
    "feature-pca": Analysis(lambda t: feature_pca(t.models[0], t.data, n=min(t.n, SHOWN), seed=t.seed)),
    "rollout": Analysis(lambda t: attention_rollout(t.models[0], t.data, n=t.few), _no_attention),
    "rollout-identity": Analysis(
        lambda t: attention_rollout(t.models[0], t.data, identity=True, n=t.few), _no_attention
    ),
    "rollout-gradient": Analysis(lambda t: attention_rollout(t.models[0], t.data, gradient=True, n=t.few), _no_rollout),
    "receptive-field": Analysis(lambda t: receptive_field(t.models[0], t.data, n=t.few, seed=t.seed)),
    "receptive-field-before": Analysis(
        lambda t: receptive_field(
            t.models[0], t.data, layers=_additions(t.models[0]), side="before", n=t.few, seed=t.seed
        ),
        _no_sums,
    ),
    "residual": Analysis(lambda t: residual_ratios(t.models[0], t.data, n=t.n, seed=t.seed), _no_sums),
    "localization": Analysis(_localization, _too_few),
    "what-if": Analysis(
        lambda t: what_if(t.models[0], t.data, _switches(t.models[0]), n=min(t.n, 2 * FEW)), _no_encoder
    ),
    "attribution": Analysis(_attribution("grad_cam"), _no_classes),
    "attribution-rollout": Analysis(_attribution("rollout"), _no_rollout),
    "attribution-rollout-gradient": Analysis(_attribution("gradient_rollout"), _no_rollout),
    "object-focus": Analysis(
        lambda t: object_focus(t.models[0], t.data, n=min(t.n, 2 * FEW), seed=t.seed), _no_objects
    ),
    "probes": Analysis(_probes, _no_labels),
    "token-probes": Analysis(_token_probes, _no_labels),
    "patch-filters": Analysis(lambda t: patch_filters(t.models[0])),
    "positions": Analysis(_positions, _no_positions),
    "neighbors": Analysis(lambda t: neighbor_similarity(t.models[0], t.data, n=t.n, seed=t.seed)),
    "inductive-bias": Analysis(lambda t: inductive_bias(t.models[0], t.data, n=min(t.n, 16), seed=t.seed)),
}

COMPARE: dict[str, Analysis] = {
    "cka": Analysis(_cka, _too_few),
    "cka-pooled": Analysis(lambda t: _cka(t, layers="blocks", tokens="gap"), _too_few),
    "block-similarity": Analysis(_with_reference, _too_few),
    "head-subsets": Analysis(
        lambda t: head_subsets(*_vit_first(t), t.data, batch=min(BATCH, t.n), n=t.n),
        lambda t: _not_vit_and_cnn(t) or _too_few(t),
    ),
    "probes": Analysis(_probes, _no_labels),
    "pooling-comparison": Analysis(_pooling, _not_cls_and_gap),
}
TWICE = (
    "logit-lens",
    "outlier-tokens",
    "position-content",
    "attention-distance",
    "head-attention",
    "feature-pca",
    "receptive-field",
    "receptive-field-before",
    "residual",
    "attribution",
    "object-focus",
    "inductive-bias",
    "cka",
)  # of each model, too


def one_of_two(analysis: Analysis, which: int) -> Analysis:
    """An analysis of one model as part of a comparison."""

    def alone(inspection: Inspection) -> Inspection:
        return replace(inspection, models=(inspection.models[which],))

    return Analysis(lambda t: analysis.run(alone(t)), lambda t: analysis.refuses(alone(t)))


def comparison() -> dict[str, Analysis]:
    """What compares two models, and what is worth having of both side by side."""
    both = {f"{name}-{'ab'[i]}": one_of_two(LOOK[name], i) for name in TWICE for i in (0, 1)}
    for i, side in enumerate("ab"):
        both[f"localization-{side}"] = Analysis(_on_common_grid(i), _too_few)
        tokens = one_of_two(LOOK["token-probes"], i)
        both[f"token-probes-{side}"] = Analysis(tokens.run, _not_cls_and_gap)
    return COMPARE | both


def _on_common_grid(which: int) -> Callable[[Inspection], Result]:
    return lambda t: _localization(replace(t, models=(t.models[which],)), _common_grid(t))


def inspection(models: tuple[Model, ...], data: Dataset, *, n: int, seed: int, names: Sequence[str] = ()) -> Inspection:
    """Checked, and the models observed; two models of one name are told apart."""
    if not isinstance(data, Dataset):
        raise ValueError(f"A Dataset is expected, from sl.dataset or sl.Folder; got a {type(data).__name__}.")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is a whole number from 1 up; got {n!r}.")
    if names and len(names) != len(models):
        raise ValueError(f"One name per model is expected, {len(models)} in all; got {len(names)}.")
    observed = [observe(m) for m in models]
    given = [str(name) for name in names] or [s.name for s in observed]
    distinct = distinct_names(given, [source(s.model) for s in observed])
    return Inspection(tuple(s.with_name(k) for s, k in zip(observed, distinct)), data, min(n, len(data)), seed)

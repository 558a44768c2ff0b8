"""One sentence per result: what the numbers show. Nothing here is written without looking at them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sightline.analysis.ablation import WhatIf
from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_attention import HeadAttention
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.attention.rollout import AttentionMaps
from sightline.analysis.biases import InductiveBias
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.pca import FeaturePCA
from sightline.analysis.probes import LayerProbes
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import ResidualRatios
from sightline.analysis.saliency.attribution import Attribution
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.cka import CKA
from sightline.analysis.similarity.localization import Localization
from sightline.analysis.similarity.neighbors import NeighborSimilarity
from sightline.analysis.similarity.pooling_comparison import PoolingComparison
from sightline.evals.accuracy import Classification, TestSets
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.evals.multilabel import MultiLabel, ReaL
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.evals.reid import Retrieval
from sightline.evals.vtab_protocol import Vtab
from sightline.spec import Result, legible
from sightline.training.run.curves import Curves


def sentence(r: Result) -> str:
    """What a result shows, from its numbers; for an unknown type the first of its summary."""
    tell = SENTENCES.get(type(r))
    return legible(tell(r) if tell is not None else _summary(r))


def percent(x: float) -> str:
    return f"{100 * x:.0f} %" if abs(x) >= 0.1 or x == 0 else f"{100 * x:.1f} %"


def _summary(r: Result) -> str:
    known = [(k, v) for k, v in r.summary().items() if math.isfinite(v)][:4]
    return ("; ".join(f"{k} {v:.3g}" for k, v in known) or "No numbers are summed up") + "."


def _cka(r: CKA) -> str:
    s = r.similarity
    if r.rows == r.columns and len(s) > 1:
        half = len(s) // 2
        corner, whole = np.nanmean(s[:half, half:]), np.nanmean(s)
        i, j = np.unravel_index(np.nanargmin(s), s.shape)
        return (
            f"Lower and upper half of the layers have a mean CKA of {corner:.2f} (all pairs: {whole:.2f}); least alike "
            f"are {r.rows[i]} and {r.columns[j]} ({s[i, j]:.2f})."
        )
    best = np.nan_to_num(s, nan=-np.inf).argmax(1)
    top = int(np.nanargmax(np.nan_to_num(s, nan=-np.inf).max(1)))
    return (
        f"Most alike are {r.rows[top]} and {r.columns[best[top]]} (CKA {s[top, best[top]]:.2f}); the mean of all pairs "
        f"is {np.nanmean(s):.2f}, and the first model's last layer finds at best {s[-1, best[-1]]:.2f} in the second."
    )


def _distance(r: AttentionDistance) -> str:
    low, high = r.pixels[0], r.pixels[-1]
    far = float((r.pixels > 2 / 3 * r.uniform).mean())
    return (
        f"The heads of the first block look {low.min():.0f} to {low.max():.0f} pixels far, those of the last "
        f"{high.min():.0f} to {high.max():.0f}; looking everywhere alike would be {r.uniform:.0f}. {percent(far)} of "
        f"all heads exceed two thirds of that."
    )


def _maps(r: AttentionMaps) -> str:
    share = r.maps / np.maximum(r.maps.sum((-1, -2), keepdims=True), 1e-12)
    top = np.sort(share.reshape(*share.shape[:-2], -1), axis=-1)[..., ::-1]
    tenth = max(1, top.shape[-1] // 10)
    most = percent(float(top[..., :tenth].sum(-1).mean()))
    return f"The tenth of the patches that gets most gets {most} of the attention."


def _attribution(r: Attribution) -> str:
    gain = float((r.insertion - r.deletion).mean())
    chance = float((r.insertion_random - r.deletion_random).mean())
    better = "more" if gain > chance else "no more"
    same = float(np.nanmean(r.agreement_random_weights))
    return (
        f"Insertion minus deletion is {gain:.2f}, against {chance:.2f} for a random order: the maps tell {better} than "
        f"chance. With scrambled weights the maps keep a rank correlation of {same:.2f}."
    )


def _mass(r: ObjectMass) -> str:
    return (
        f"{percent(float(r.mass.mean()))} of the maps lie on the object, which covers {percent(float(r.area.mean()))} "
        f"of the area; more than its share in {percent(float((r.mass > r.area).mean()))} of {len(r.mass)} images."
    )


def _focus(r: ObjectFocus) -> str:
    gains = [(method, *r.gain(method)) for method in r.methods]
    told = ", ".join(f"{m} {100 * g:+.1f} ± {100 * h:.1f} points" for m, g, h in gains)
    return f"On the object beyond its share of the area ({percent(float(r.area.mean()))}): {told}."


def _twins(r: PoolingComparison) -> str:
    half = max(1, len(r.by_block) // 2)
    return (
        f"The twins have CKA {np.nanmean(r.by_block[:half]):.2f} in the lower half and {r.by_block[-1]:.2f} in the "
        f"last block; {percent(float(r.own[0]))} of the tokens know their own patch best with a class token, "
        f"{percent(float(r.own[1]))} with the mean."
    )


def _head_attention(r: HeadAttention) -> str:
    own = r.summary()["heads that look at the own patch most"]
    n, blocks, heads = r.attention.shape[:3]
    return (
        f"{blocks} blocks of {heads} heads on {n} images; {percent(own)} of the heads look at their own patch most "
        f"often, and the favorite patch gets {percent(float(r.peaks.mean()))} of the attention on average."
    )


def _film(r: FeaturePCA) -> str:
    first, last = r.summary().values()
    way = "more" if last > first else "less"
    return (
        f"The cells of one image are {way} alike at the end (mean cosine {last:.2f}) than after the first block "
        f"({first:.2f}); the components shown hold {percent(float(r.explained.min()))} of the variance or more."
    )


def _receptive(r: ReceptiveField) -> str:
    width = r.maps.shape[2]
    return (
        f"Half of the mass lies within {r.radii[0, 0]:.0f} pixels in the first block and {r.radii[-1, 0]:.0f} in the "
        f"last (image: {width} wide); the own cell holds {percent(float(r.own[0]))} and {percent(float(r.own[-1]))}."
    )


def _residual(r: ResidualRatios) -> str:
    if np.isnan(r.ratio).all():
        why = next(iter(r.reasons.values()), "no reason is known")
        return f"None of {len(r.names)} additions has a ratio of skip and branch ({why})."
    i = int(np.nanargmax(r.ratio))
    told = f"Skips carry {np.nanmedian(r.ratio):.1f} times what branches add (median), most at {r.names[i]}"
    if np.isfinite(r.class_token[0]).any():
        above = r.class_minus_patches() > 0
        told += f"; the class token's ratio is above the patches' at {int(above.sum())} of {len(above)} additions"
        last = int(np.flatnonzero(above)[-1]) if above.any() else -1
        told += f", for the last time at number {last}" if last >= 0 else ""
    return told + "."


def _localization(r: Localization) -> str:
    s = r.summary()
    hit, own = s["tokens most like their own patch"], s.get("CKA with the own patch, mean", math.nan)
    others = s.get("CKA with other patches, mean", math.nan)
    return (
        f"{percent(hit)} of the tokens of {r.layer} are most like their own patch (chance {percent(1 / len(r.maps))}); "
        f"the mean CKA is {own:.2f} with the own and {others:.2f} with others."
    )


def _what_if(r: WhatIf) -> str:
    known = math.isfinite(r.whole)
    values, what = (r.accuracy, "accuracy") if known else (r.agreement, "agreement with the whole model")
    i, j = int(np.nanargmin(values)), int(np.nanargmax(values))
    start = f"With everything in place the accuracy is {percent(r.whole)}. " if known else ""
    return (
        f"{start}It costs most to switch off {r.off[i]} ({what} {percent(float(values[i]))}), least to switch off "
        f"{r.off[j]} ({percent(float(values[j]))})."
    )


def _heads(r: HeadSubsets) -> str:
    near, far = r.similarity[0].mean(), r.similarity[-1].mean()
    rho = r.summary()["rank correlation of CKA and distance, mean"]
    return (
        f"The most local heads have a mean CKA of {near:.2f} with the CNN's lower layers, the most global {far:.2f}; "
        f"rank correlation with distance {rho:.2f}."
    )


def _scale(r: BlockSimilarity) -> str:
    rows = [row[np.isfinite(row)] for row in r.similarity]
    return (
        "; ".join(
            f"{n}: CKA {row[0]:.2f} in the first block, {row[-1]:.2f} in the last" for n, row in zip(r.models, rows)
        )
        + "."
    )


def _filters(r: PatchFilters) -> str:
    s = r.summary()
    return (
        f"{len(r.explained)} components explain {percent(s['variance explained'])} of the variance; "
        f"{percent(s['energy at low frequencies'])} of their energy is at low frequencies, against "
        f"{percent(s['energy at low frequencies, noise'])} for noise."
    )


def _positions(r: PositionSimilarity) -> str:
    way = "falls" if r.decay < 0 else "does not fall"
    return (
        f"Likeness {way} with distance (rank correlation {r.decay:.2f}); within a row or column it is "
        f"{r.row_column:+.2f} against pairs as far apart, and one wave per dimension explains {percent(r.sinusoid)}."
    )


def _neighbors(r: NeighborSimilarity) -> str:
    return (
        f"Neighboring patches correlate by {r.by_distance[0, 1]:.2f}, the farthest by {r.by_distance[-1, 1]:.2f}, "
        f"patches of other images by {r.across:.2f}."
    )


def _priors(r: InductiveBias) -> str:
    return (
        f"{percent(r.locality_first)} of the first block's receptive field lie within an eighth of the image, "
        f"{percent(r.locality_last)} of the last's; a shift by one cell leaves an equivariance error of "
        f"{r.equivariance:.2f}, mixing the patches changes the pooled features by {r.permutation_pooled:.2f}."
    )


def _fewshot(r: FewShot) -> str:
    parts = [f"{s} shots {100 * m:.1f} %" + (f" ± {100 * h:.1f}" if math.isfinite(h) else "")
             for s, m, h in zip(r.shots, r.mean, r.half_width)]  # fmt: skip
    return f"{', '.join(parts)}; chance is {100 / max(len(r.classes), 1):.1f} %."


def _probed(r: ProbeAccuracy) -> str:
    best = int(np.nanargmax(r.mean))
    return f"The best layer is {r.layers[best]} ({100 * r.mean[best]:.1f} %); the last has {100 * r.mean[-1]:.1f} %."


def _layer_probes(r: LayerProbes) -> str:
    ends = [row[np.isfinite(row)][-1] for row in r.accuracy]
    order = np.argsort(ends)[::-1]
    return "At the last block: " + ", ".join(f"{r.curves[i]} {100 * ends[i]:.1f} %" for i in order) + "."


def _episodes(r: Episodes) -> str:
    low, high = np.unravel_index(r.mean.argmin(), r.mean.shape), np.unravel_index(r.mean.argmax(), r.mean.shape)
    cells = [f"{r.ways[at[0]]}-way {r.shots[at[1]]}-shot ({100 * r.mean[at]:.1f} %)" for at in (low, high)]
    return f"From {cells[0]} to {cells[1]}; cosine {r.within:.2f} within a class, {r.between:.2f} between classes."


def _classification(r: Classification) -> str:
    wrong = r.confused(1)
    most = f"; {wrong[0][0]} is taken for {wrong[0][1]} most often ({wrong[0][2]} times)" if wrong else ""
    low, high = r.interval
    return (
        f"Top-1 {100 * r.top1:.1f} % [{100 * low:.1f}, {100 * high:.1f}], top-5 {100 * r.top5:.1f} %, calibration "
        f"error {100 * r.calibration_error:.1f} points{most}."
    )


def _test_sets(r: TestSets) -> str:
    worst = int(r.top1.argmin())
    return f"From {100 * r.top1[0]:.1f} % on {r.names[0]} to {100 * r.top1[worst]:.1f} % on {r.names[worst]}."


def _vtab(r: Vtab) -> str:
    groups = ", ".join(f"{g} {100 * v:.1f} %" for g, v in r.by_group.items())
    return f"Mean of {len(r.tasks)} tasks {100 * r.score:.1f} %: {groups}."


def _curves(r: Curves) -> str:
    steps = int(r.step[-1]) if len(r.step) else 0
    ends = [f"{name} {r.of(name)[1][0]:.3g} → {r.of(name)[1][-1]:.3g}" for name in r.names if len(r.of(name)[0]) > 1]
    told = [e for e in ends if "loss" in e or "top" in e or "accuracy" in e] or ends
    return f"After {steps:,} steps: {'; '.join(told[:4]) or 'nothing was logged twice'}."


SENTENCES: dict[type[Result], Callable[[Any], str]] = {
    CKA: _cka,
    AttentionDistance: _distance,
    AttentionMaps: _maps,
    Attribution: _attribution,
    ObjectMass: _mass,
    HeadAttention: _head_attention,
    ObjectFocus: _focus,
    PoolingComparison: _twins,
    FeaturePCA: _film,
    ReceptiveField: _receptive,
    ResidualRatios: _residual,
    Localization: _localization,
    WhatIf: _what_if,
    HeadSubsets: _heads,
    BlockSimilarity: _scale,
    PatchFilters: _filters,
    PositionSimilarity: _positions,
    NeighborSimilarity: _neighbors,
    InductiveBias: _priors,
    FewShot: _fewshot,
    ProbeAccuracy: _probed,
    LayerProbes: _layer_probes,
    Episodes: _episodes,
    Classification: _classification,
    TestSets: _test_sets,
    Vtab: _vtab,
    Curves: _curves,
    MultiLabel: lambda r: (
        f"Top-1 is among the labels of {percent(r.top1)} of {r.scored} images; mAP {r.mean_average_precision:.2f}."
    ),
    ReaL: lambda r: f"{100 * r.accuracy:.1f} % of {r.scored:,} images against reassessed labels.",
    Retrieval: lambda r: (
        f"The first image is right for {percent(float(r.cmc[0]))} of the queries; mAP {np.nanmean(r.precision):.2f}."
    ),
}

"""`sl.verdicts`: the papers' claims tested against saved results. A pure function of results."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.probes import LayerProbes
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import ResidualRatios
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.cka import CKA
from sightline.analysis.similarity.localization import Localization
from sightline.analysis.similarity.pooling_comparison import PoolingComparison
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.spec import Result
from sightline.studies import (
    cka_claims,
    field_claims,
    head_claims,
    place_claims,
    probe_claims,
    residual_claims,
    vit_claims,
)
from sightline.studies.evidence import Evidence, Where, anything, gather
from sightline.studies.verdict import Assessment, Verdict


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a paper in our words, where it is made, and how results decide it."""

    number: str
    brief: str  # for a line of a terminal
    source: str
    statement: str
    judge: Callable[[Evidence], Iterator[Assessment]]
    reads: tuple[type[Result], ...]  # the types of results that decide it
    where: Where = anything  # which results of these types
    related: tuple[type[Result], ...] = ()  # types that show the same thing and do not decide it
    wants: str  # what a user computes to have it decided

    def about(self, result: Result) -> bool:
        """Whether this claim belongs beside a result."""
        return isinstance(result, self.related) or (isinstance(result, self.reads) and self.where(result))


V, R, B = "ViT (2020)", "Raghu et al. (2021)", "BiT (2019)"
TWO = "sightline compare of a ViT and a CNN"
CLAIMS = (
    Claim(
        number="V7",
        brief="Near patches: similar position embeddings",
        source=f"{V}, figure 7 middle",
        statement="The closer two patches are, the more similar their position embeddings; patches of one row or "
        "column are more similar than their distance alone explains.",
        judge=vit_claims.positions,
        reads=(PositionSimilarity,),
        wants="positions",
    ),
    Claim(
        number="V8",
        brief="Heads: local and global low, global high",
        source=f"{V}, figure 7 right",
        statement="In the lowest block some heads are local and some global; attention distance grows with depth, and "
        "most heads of the upper half are global.",
        judge=head_claims.distances,
        reads=(AttentionDistance,),
        wants="attention-distance",
    ),
    Claim(
        number="V9",
        brief="A hybrid's lowest heads look farther",
        source=f"{V}, section 4.5",
        statement="The most local head of a hybrid's lowest block looks farther than that of a ViT's.",
        judge=head_claims.hybrid_heads,
        reads=(AttentionDistance,),
        wants="attention-distance of a ViT and a hybrid",
    ),
    Claim(
        number="V10",
        brief="Patch filters: few and smooth components",
        source=f"{V}, figure 7 left",
        statement="The first principal components of the patch filters explain more of them, and are smoother, than "
        "those of random filters.",
        judge=vit_claims.filters,
        reads=(PatchFilters,),
        wants="patch-filters",
    ),
    Claim(
        number="V14",
        brief="Rollout lies on the regions that matter",
        source=f"{V}, figure 6",
        statement="Attention rolled out over all layers lies on the regions that matter for the class.",
        judge=vit_claims.rollout_focus,
        reads=(
            ObjectMass,
            ObjectFocus,
        ),
        wants="object-focus of scenes, or sl.analysis.object_mass",
    ),
    Claim(
        number="B4",
        brief="More shots, higher accuracy",
        source=f"{B}, figure 4",
        statement="More shots give higher accuracy.",
        judge=vit_claims.shots,
        reads=(FewShot,),
        wants="sl.fewshot",
    ),
    Claim(
        number="B6",
        brief="Episodes: more ways hurt, more shots help",
        source="seminar notes",
        statement="Episodic accuracy falls with the number of ways and rises with the number of shots.",
        judge=vit_claims.ways_and_shots,
        reads=(Episodes,),
        wants="sl.evals.episodes with several ways and shots",
    ),
    Claim(
        number="C1",
        brief="ViT layers are more alike than a ResNet's",
        source=f"{R}, figure 1",
        statement="Lower and upper layers of a ViT are more similar than those of a ResNet, and its heat map is more "
        "uniform.",
        judge=cka_claims.evenness,
        reads=(CKA,),
        where=cka_claims.within,
        wants=TWO,
    ),
    Claim(
        number="C2",
        brief="A ResNet's heat map falls into stages",
        source=f"{R}, figure 1",
        statement="The heat map of a ResNet falls into stages.",
        judge=cka_claims.stage_blocks,
        reads=(CKA,),
        where=cka_claims.within,
        wants=TWO,
    ),
    Claim(
        number="C3",
        brief="ResNet's lower half: ViT's lowest quarter",
        source=f"{R}, figure 2",
        statement="The lower half of a ResNet matches about the lowest quarter of a ViT, the upper half the third "
        "after it.",
        judge=cka_claims.lower_half,
        reads=(CKA,),
        where=cka_claims.across,
        wants=TWO,
    ),
    Claim(
        number="C4",
        brief="ViT's top third matches ResNets least",
        source=f"{R}, figure 2",
        statement="The layers of a ViT's top third match any layer of a ResNet less well than the rest do.",
        judge=cka_claims.top_third,
        reads=(CKA,),
        where=cka_claims.across,
        wants=TWO,
    ),
    Claim(
        number="C5",
        brief="Low blocks: some heads local; high: none",
        source=f"{R}, figure 3",
        statement="The two lowest blocks mix local and global heads; the two highest have global heads only.",
        judge=head_claims.low_and_high_heads,
        reads=(AttentionDistance,),
        wants="attention-distance",
    ),
    Claim(
        number="C7",
        brief="Local heads are most like a ResNet's layers",
        source=f"{R}, figure 5",
        statement="The more local a head of the lowest blocks is, the more similar its output is to the lower layers "
        "of a ResNet.",
        judge=head_claims.subsets,
        reads=(HeadSubsets,),
        wants=TWO,
    ),
    Claim(
        number="C8",
        brief="ViT's receptive fields are larger early on",
        source=f"{R}, figure 6",
        statement="Effective receptive fields of lower layers are larger in a ViT than in a ResNet; a ResNet's grow "
        "gradually, a ViT's in one jump.",
        judge=field_claims.receptive,
        reads=(ReceptiveField,),
        where=field_claims.after_addition,
        wants=TWO,
    ),
    Claim(
        number="C9",
        brief="Own patch dominates a ViT's receptive field",
        source=f"{R}, figures C.1 to C.4",
        statement="After the residual addition a token's own patch dominates a ViT's receptive field at all depths, "
        "before it much less; a ResNet shows no such difference.",
        judge=field_claims.center_patch,
        reads=(ReceptiveField,),
        wants=TWO,
    ),
    Claim(
        number="C10",
        brief="Class token: skipped low, rewritten high",
        source=f"{R}, figure 7",
        statement="The class token passes through the skip connections more than patch tokens do up to some depth, and "
        "less from there on.",
        judge=residual_claims.class_token_skips,
        reads=(ResidualRatios,),
        wants="residual of a model with a class token",
    ),
    Claim(
        number="C11",
        brief="Skips carry more in a ViT than in a ResNet",
        source=f"{R}, figure 7",
        statement="Skip connections carry more in a ViT than in a ResNet.",
        judge=residual_claims.skips_of_both,
        reads=(ResidualRatios,),
        wants=TWO,
    ),
    Claim(
        number="C12",
        brief="Class token's late changes are the MLP's",
        source=f"{R}, figures E.1 and E.2",
        statement="Late changes of the class token come from the MLP more than from attention; cosines cross over as "
        "ratios do.",
        judge=residual_claims.late_class_token,
        reads=(ResidualRatios,),
        wants="residual of a model with a class token",
    ),
    Claim(
        number="C14",
        brief="ViT tokens stay localized to the last block",
        source=f"{R}, figure 9",
        statement="In the last block of a ViT with a class token, interior tokens are still more similar to their own "
        "input patch than to others.",
        judge=place_claims.own_place,
        reads=(Localization,),
        wants="localization",
    ),
    Claim(
        number="C15",
        brief="A ResNet's last map is less localized",
        source=f"{R}, figure 9",
        statement="The last feature map of a ResNet is less well localized; its earlier stages are better than that, "
        "and still below the ViT.",
        judge=place_claims.own_place_of_both,
        reads=(Localization,),
        wants=TWO,
    ),
    Claim(
        number="C16",
        brief="Average pooling costs a ViT localization",
        source=f"{R}, figure 10",
        statement="Trained with average pooling, a ViT loses localization.",
        judge=place_claims.own_place_by_pool,
        reads=(Localization,),
        related=(PoolingComparison,),
        wants="sightline compare of a CLS and a GAP model",
    ),
    Claim(
        number="C17",
        brief="Single top tokens: CLS poor, GAP good",
        source=f"{R}, figure 11a",
        statement="Single tokens at the top predict the class poorly after CLS training, and well after GAP training.",
        judge=probe_claims.tokens_by_pool,
        reads=(ProbeAccuracy,),
        related=(PoolingComparison,),
        wants="sightline compare of a CLS and a GAP model",
    ),
    Claim(
        number="C18",
        brief="Probes: CLS and GAP end up equal",
        source=f"{R}, figure 11b",
        statement="Probed the way they were trained, both models end up equal; a GAP model's first token is poor early "
        "and good late; the mean of a CLS model's tokens equals its class token until the last third, then falls off.",
        judge=probe_claims.five_curves,
        reads=(LayerProbes,),
        related=(PoolingComparison,),
        wants="sightline compare of a CLS and a GAP model",
    ),
    Claim(
        number="C19",
        brief="CLS and GAP agree up to the middle",
        source=f"{R}, appendix D",
        statement="CLS and GAP models agree up to the middle and differ at the end.",
        judge=probe_claims.middle_and_end,
        reads=(LayerProbes,),
        related=(PoolingComparison,),
        wants="sightline compare of a CLS and a GAP model",
    ),
    Claim(
        number="C20",
        brief="Less data changes the upper blocks",
        source=f"{R}, figure 12",
        statement="With less training data the lower blocks stay the same and the upper ones change, in larger models "
        "more.",
        judge=cka_claims.data_scale,
        reads=(BlockSimilarity,),
        where=cka_claims.varies_data,
        wants="sightline compare of a run on part of the data with one on all of it, for two sizes of model",
    ),
    Claim(
        number="C22",
        brief="Middle third: a ViT predicts better",
        source=f"{R}, figure 13",
        statement="The middle third of a ViT predicts the class better than that of a ResNet.",
        judge=probe_claims.middle_of_both,
        reads=(LayerProbes,),
        wants=TWO,
    ),
)


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """What results say about every claim they bear on, once for each model or pair of models.

    A claim holds if the whole 95 % interval of each of its effects lies on the claimed side of its bound; it does not
    if one lies wholly on the other side; all else, and what has no interval, is undecided. The bounds are ours, not the
    papers'. The verdicts are about these models, and the intervals over images; what training so does takes several
    training seeds: `sl.studies.over_training`. Models are told apart by fingerprint, and two models are compared only
    on the same images.

    >>> import numpy as np
    >>> r = sl.evals.FewShot(title="", caption="", shots=(1, 5), seeds=(0, 1, 2), classes=("a", "b"),
    ...     l2=np.ones((2, 3)),
    ...     accuracy=np.array([[0.5, 0.52, 0.48], [0.8, 0.83, 0.79]]), per_class=np.ones((2, 2)))
    >>> [(v.claim, v.state) for v in sl.verdicts([r])]
    [('B4', 'holds')]
    """
    evidence = gather(results)
    return [verdict for c in CLAIMS for verdict in judge(c, evidence)]


def judge(c: Claim, evidence: Evidence) -> list[Verdict]:
    """What the evidence says about one claim."""
    return [
        Verdict(
            claim=c.number,
            source=c.source,
            statement=c.statement,
            models=tuple(m.name for m in found.models),
            fingerprints=tuple(m.fingerprint for m in found.models),
            effects=found.effects,
            note=found.note,
            images=found.images,
            ways=found.ways,
        )
        for found in c.judge(evidence)
    ]


def without_verdict(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """The claims without any verdict, and what would decide them."""
    have = {v.claim for v in verdicts}
    return {c.number: c.wants for c in CLAIMS if c.number not in have}

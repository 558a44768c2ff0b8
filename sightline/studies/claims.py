"""`sl.verdicts`: the papers' claims held against saved results. A pure function of results."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sightline.spec import Result
from sightline.studies import cka_claims, probe_claims, raghu_claims, vit_claims
from sightline.studies.evidence import Evidence, gather
from sightline.studies.verdict import Verdict
from sightline.studies.vit_claims import Judged


@dataclass(frozen=True)
class Claim:
    """One claim of a paper in our words, where it is made, and how results decide it."""

    number: str
    source: str
    statement: str
    judge: Callable[[Evidence], Iterator[Judged]]
    wants: str  # what must be among the results
    needs: int = 1  # seeds


V, R, B = "ViT (2020)", "Raghu et al. (2021)", "BiT (2019)"
TWO = "sightline compare of a ViT and a CNN"
CLAIMS = (
    Claim(
        "V7",
        f"{V}, figure 7 middle",
        "Position embeddings are more alike the nearer their patches are, and alike within a row or column.",
        vit_claims.positions,
        "positions",
    ),
    Claim(
        "V8",
        f"{V}, figure 7 right",
        "In the lowest block some heads look near by, some everywhere; distance grows with depth, the upper half is "
        "mostly global.",
        vit_claims.distances,
        "attention-distance",
    ),
    Claim(
        "V9",
        f"{V}, section 4.5",
        "The lowest block of a hybrid has fewer local heads than that of a ViT.",
        vit_claims.hybrid_heads,
        "attention-distance of a ViT and a hybrid",
    ),
    Claim(
        "V10",
        f"{V}, figure 7 left",
        "The first principal components of the patch filters look like a smooth basis.",
        vit_claims.filters,
        "patch-filters",
    ),
    Claim(
        "V14",
        f"{V}, figure 6",
        "Attention rolled out over all layers lies on what matters for the class.",
        vit_claims.rollout_focus,
        "object-focus of scenes, or sl.analysis.object_mass",
    ),
    Claim("B4", f"{B}, figure 4", "More shots give more accuracy.", vit_claims.shots, "sl.fewshot", 3),
    Claim(
        "B6",
        "seminar notes, R15",
        "Accuracy of episodes falls with the number of ways and rises with that of shots.",
        vit_claims.ways_and_shots,
        "sl.episodes with several ways and shots",
        3,
    ),
    Claim(
        "C1",
        f"{R}, figure 1",
        "Lower and upper layers of a ViT are more alike than those of a ResNet, and its heat map is more even.",
        cka_claims.evenness,
        TWO,
    ),
    Claim("C2", f"{R}, figure 1", "The heat map of a ResNet falls into stages.", cka_claims.stage_blocks, TWO),
    Claim(
        "C3",
        f"{R}, figure 2",
        "The lower half of a ResNet matches about the lowest quarter of a ViT.",
        cka_claims.lower_half,
        TWO,
    ),
    Claim("C4", f"{R}, figure 2", "The top third of a ViT is like no layer of a ResNet.", cka_claims.top_third, TWO),
    Claim(
        "C5",
        f"{R}, figure 3",
        "The two lowest blocks mix local and global heads, the two highest have global heads only.",
        raghu_claims.low_and_high_heads,
        "attention-distance",
    ),
    Claim(
        "C7",
        f"{R}, figure 5",
        "The more local heads are, the more what they find is like a ResNet's lower layers.",
        raghu_claims.subsets,
        TWO,
    ),
    Claim(
        "C8",
        f"{R}, figure 6",
        "Receptive fields of lower layers are larger in a ViT than in a ResNet.",
        raghu_claims.receptive,
        TWO,
    ),
    Claim(
        "C9",
        f"{R}, figures C.1 to C.4",
        "Behind the addition the own patch dominates a ViT's receptive field at all depths, before it much less; a "
        "ResNet shows no such difference.",
        raghu_claims.center_patch,
        "receptive-field and receptive-field-before",
    ),
    Claim(
        "C10",
        f"{R}, figure 7",
        "The class token goes through the skips in the lower half and is rewritten in the upper; patches the reverse.",
        raghu_claims.class_token_skips,
        "residual of a model with a class token",
    ),
    Claim("C11", f"{R}, figure 7", "Skips carry more in a ViT than in a ResNet.", raghu_claims.skips_of_both, TWO),
    Claim(
        "C12",
        f"{R}, figures E.1 and E.2",
        "Late changes of the class token come from the MLP more than from attention; cosines cross over as ratios do.",
        raghu_claims.late_class_token,
        "residual of a model with a class token",
    ),
    Claim(
        "C14",
        f"{R}, figure 9",
        "At the end most interior tokens of a ViT with a class token still know their own place best.",
        raghu_claims.own_place,
        "localization",
    ),
    Claim("C15", f"{R}, figure 9", "A ResNet's last map knows places less well.", raghu_claims.own_place_of_both, TWO),
    Claim(
        "C16",
        f"{R}, figure 10",
        "Trained with average pooling, a ViT loses the places.",
        raghu_claims.own_place_by_pool,
        "localization of a CLS and a GAP model",
    ),
    Claim(
        "C17",
        f"{R}, figure 11a",
        "Single tokens at the top say little of the class after CLS training, and much after GAP training.",
        probe_claims.tokens_by_pool,
        "sl.analysis.token_probes of a CLS and a GAP model",
        3,
    ),
    Claim(
        "C18",
        f"{R}, figure 11b",
        "Probed as they were trained, both models end alike; a GAP model's first token is poor early, good late.",
        probe_claims.five_curves,
        "sl.layer_probes of a CLS and a GAP model",
        3,
    ),
    Claim(
        "C19",
        f"{R}, appendix D",
        "CLS and GAP models agree up to the middle and differ at the end.",
        probe_claims.middle_and_end,
        "sl.layer_probes of a CLS and a GAP model",
        3,
    ),
    Claim(
        "C20",
        f"{R}, figure 12",
        "With less data the lower blocks stay as they are, the upper ones change.",
        raghu_claims.data_scale,
        'sl.analysis.block_similarity with varied="data"',
        3,
    ),
    Claim(
        "C22",
        f"{R}, figure 13",
        "Middle layers of a ViT say more of the class than those of a ResNet.",
        probe_claims.middle_of_both,
        "sl.layer_probes of a ViT and a CNN",
        3,
    ),
)


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """What results say of every claim that they have something to say of, once for each model or pair of models.

    A claim holds if the whole 95 % interval of each of its effects lies on the claimed side of its bound; it does not
    if one lies wholly on the other side; all else, and too few seeds, is undecided. Bounds are ours, not the papers'.

    >>> import numpy as np
    >>> r = sl.evals.FewShot(title="", caption="", shots=(1, 5), seeds=(0, 1, 2), classes=("a", "b"),
    ...     l2=np.ones((2, 3)),
    ...                accuracy=np.array([[0.5, 0.52, 0.48], [0.8, 0.83, 0.79]]), per_class=np.ones((2, 2)))
    >>> [(v.claim, v.state) for v in sl.verdicts([r])]
    [('B4', 'holds')]
    """
    evidence = gather(results)
    return [verdict for c in CLAIMS for verdict in judged(c, evidence)]


def judged(c: Claim, evidence: Evidence) -> list[Verdict]:
    """What the evidence says of one claim."""
    return [
        Verdict(
            claim=c.number,
            source=c.source,
            statement=c.statement,
            models=tuple(models),
            effects=tuple(effects),
            seeds=seeds,
            needs=c.needs,
            note=note,
        )
        for models, effects, seeds, note in c.judge(evidence)
    ]


def unjudged(found: Iterable[Verdict]) -> dict[str, str]:
    """The claims of the table without any verdict, and what would decide them."""
    have = {v.claim for v in found}
    return {c.number: c.wants for c in CLAIMS if c.number not in have}

"""What the papers show where a section shows ours: heading, figure, finding in our words, and the claims to judge."""

from dataclasses import dataclass

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
from sightline.spec import Result
from sightline.training.run.curves import Curves


@dataclass(frozen=True)
class Topic:
    """What a kind of result is about."""

    heading: str
    where: str = ""  # in the papers
    found: str = ""  # there, in our words
    claims: tuple[str, ...] = ()


RAGHU, VIT = "Raghu et al. 2021", "ViT 2020"
# in the order of the page: what can be looked through comes first
TOPICS: dict[type[Result], Topic] = {
    FeaturePCA: Topic("An image on its way through the network"),
    HeadAttention: Topic("Where every head looks", f"{VIT}, figure 6", "Heads attend to what matters for the class."),
    CKA: Topic(
        "How alike layers are",
        f"{RAGHU}, figures 1 and 2",
        "A ViT's layers are alike from bottom to top; a ResNet's fall into stages, and its lower half matches the "
        "lowest quarter of a ViT.",
        ("C1", "C2", "C3", "C4"),
    ),
    AttentionDistance: Topic(
        "How far heads look",
        f"{VIT}, figure 7; {RAGHU}, figure 3",
        "Low blocks mix local and global heads, high blocks are global throughout.",
        ("V8", "V9", "C5"),
    ),
    HeadSubsets: Topic(
        "Local heads and a CNN's lower layers",
        f"{RAGHU}, figure 5",
        "The more local the heads, the more alike to a ResNet's lower layers.",
        ("C7",),
    ),
    ReceptiveField: Topic(
        "Effective receptive fields",
        f"{RAGHU}, figures 6 and C.1 to C.4",
        "A ViT sees far from the first blocks on; its own patch dominates behind the addition.",
        ("C8", "C9"),
    ),
    ResidualRatios: Topic(
        "What the skip connections carry",
        f"{RAGHU}, figures 7, E.1, E.2",
        "The class token passes through the skips early and is rewritten late; patches do the reverse.",
        ("C10", "C11", "C12"),
    ),
    Localization: Topic(
        "Which place a token still knows",
        f"{RAGHU}, figures 9 and 10",
        "Trained with a class token, a ViT's tokens keep their place to the end; a ResNet's or a GAP model's do less.",
        ("C14", "C15", "C16"),
    ),
    AttentionMaps: Topic(
        "Attention on images", f"{VIT}, figures 6 and 14", "Rolled out, attention lies on what matters for the class."
    ),
    Attribution: Topic("Where a decision comes from"),
    ObjectFocus: Topic("How much lies on the object", f"{VIT}, figure 6", "Attention lies on the object.", ("V14",)),
    ObjectMass: Topic("How much lies on the object", f"{VIT}, figure 6", "Attention lies on the object.", ("V14",)),
    WhatIf: Topic(
        "What if a part were missing",
        f"{RAGHU}, figure 8",
        "Trained without one block's skips, layers before and behind it fall apart; here nothing is retrained.",
    ),
    PatchFilters: Topic(
        "Patch filters", f"{VIT}, figure 7 left", "The first components look like a basis of smooth patterns.", ("V10",)
    ),
    PositionSimilarity: Topic(
        "Position embeddings",
        f"{VIT}, figure 7 middle",
        "Nearer patches have more similar embeddings; rows and columns show.",
        ("V7",),
    ),
    BlockSimilarity: Topic(
        "Likeness by block",
        f"{RAGHU}, figure 12",
        "With less data, lower blocks stay the same and upper ones change.",
        ("C20",),
    ),
    PoolingComparison: Topic(
        "Class token or mean: twins",
        f"{RAGHU}, figures 10, 11 and D.4",
        "Trained with a class token or with a mean, models agree up to the middle and differ at the end.",
        ("C16", "C17", "C18", "C19"),
    ),
    LayerProbes: Topic(
        "What each block knows",
        f"{RAGHU}, figures 11b and 13",
        "Class tokens and means know the class at different depths.",
        ("C18", "C19", "C22"),
    ),
    ProbeAccuracy: Topic(
        "Probes by layer and token",
        f"{RAGHU}, figures 11a and D.4",
        "Single tokens know the class after GAP training, hardly after CLS training.",
        ("C17",),
    ),
    Curves: Topic("Training"),
    FewShot: Topic(
        "Few-shot accuracy", f"{VIT}, figure 4; BiT, figure 4", "More shots and more pre-training data help.", ("B4",)
    ),
    Episodes: Topic("Episodes on unseen classes", "seminar notes", "More ways hurt, more shots help.", ("B6",)),
    Vtab: Topic("VTAB", f"{VIT}, table 9", "ViT-H/14 reaches 77.6 % on average of 19 tasks, fine-tuned."),
    Classification: Topic("Accuracy"),
    TestSets: Topic("Several test sets"),
    MultiLabel: Topic("Several labels per image"),
    ReaL: Topic("Reassessed labels", f"{VIT}, table 2", "ViT-H/14 reaches 90.7 % on ReaL."),
    Retrieval: Topic("Retrieval"),
    NeighborSimilarity: Topic("Neighboring patches"),
    InductiveBias: Topic("Built-in assumptions, measured"),
}


def topic(r: Result) -> Topic:
    """Of a result; an unknown type is called by its title."""
    return TOPICS.get(type(r)) or Topic(r.title or type(r).__name__)


def place(r: Result) -> int:
    """Where on the page."""
    order = list(TOPICS)
    return order.index(type(r)) if type(r) in order else len(order)

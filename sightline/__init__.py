"""Sightline: train vision models, and see what they see."""

from sightline import threads as threads  # before torch is loaded
from sightline.analysis.attention import AttentionDistance, attention_distance
from sightline.analysis.attribution import Attribution, attribution
from sightline.analysis.cam import cam
from sightline.analysis.cka import CKA, cka
from sightline.analysis.distance import attention_entropy, mean_distance, prefix_mass
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity, patch_filters, position_similarity
from sightline.analysis.equivariance import (
    equivariance_error,
    invariance_error,
    jacobian_locality,
    permutation_error,
    permute_patches,
    token_jacobian,
    unchanged_fraction,
)
from sightline.analysis.faithful import ObjectMass, object_mass
from sightline.analysis.film import DepthFilm, depth_film
from sightline.analysis.gaze import Gaze, gaze
from sightline.analysis.heads import HeadSubsets, head_subsets
from sightline.analysis.localisation import Localisation, localisation
from sightline.analysis.look import Looked, compare, look
from sightline.analysis.neighbours import NeighbourSimilarity, neighbour_similarity
from sightline.analysis.on_object import ObjectFocus, object_focus
from sightline.analysis.pooling_twins import PoolingTwins, pooling_twins
from sightline.analysis.prior import PriorReport, prior_report
from sightline.analysis.probes import LayerProbes, layer_probes, token_probes
from sightline.analysis.receptive import ReceptiveField, mass_radii, receptive_field
from sightline.analysis.residual import ResidualStudy, residual_study, skip_against_branch
from sightline.analysis.rollout import AttentionMaps, attention_maps, attention_rollout, gradient_rollout, rollout
from sightline.analysis.scale import ScaleSimilarity, frequency_similarity, scale_similarity
from sightline.analysis.similarity import hsic, linear_cka, mutual_knn, u_center
from sightline.analysis.what_if import WhatIf, what_if
from sightline.data.arrays import Arrays
from sightline.data.augment import Augment
from sightline.data.batches import Batches
from sightline.data.check import Checked, Finding, check
from sightline.data.dataset import Dataset
from sightline.data.errors import BadImage, TooManyBad
from sightline.data.folder import Folder, Manifest
from sightline.data.images import normalise
from sightline.data.named import Got, get_dataset
from sightline.data.opening import open_images
from sightline.data.scenes.scenes import Scene, Scenes
from sightline.data.sharding import Sharded, shard
from sightline.data.shards import Shards
from sightline.data.sheet import contact_sheet
from sightline.data.source import dataset
from sightline.data.suites import SuiteTask, suite
from sightline.evals.accuracy import Classification, TestSets, evaluate, evaluate_sets, logits, score
from sightline.evals.curves import Probed, probe
from sightline.evals.dense import BoxProbe, Correspondence, SegmentationHead, patch_correspondence
from sightline.evals.episodes import Episode, Episodes, cosine_similarity, episodes, sample_episode, split_classes
from sightline.evals.extract import extract
from sightline.evals.extracted import Extracted
from sightline.evals.fewshot import FewShot, fewshot, fewshot_evaluator
from sightline.evals.multilabel import MultiLabel, ReaL, score_labels, score_real
from sightline.evals.predict import Prediction, Predictions, predict
from sightline.evals.probes import KNNProbe, LinearProbe
from sightline.evals.retrieval import Retrieval, retrieval
from sightline.evals.truth import foreground, scene_boxes, scene_masks
from sightline.evals.vtab import Vtab, vtab, vtab_references
from sightline.figures.draw import draw, save_figure
from sightline.models.anatomy import Part, anatomy
from sightline.models.bit import BiT, BiTConfig
from sightline.models.build import build, resize
from sightline.models.cost import Cost, attention_growth, cost
from sightline.models.hybrid import Hybrid, HybridConfig
from sightline.models.layers import attention, basic_self_attention
from sightline.models.taps import paths, record
from sightline.models.variants import config, names
from sightline.models.vit import ViT, ViTConfig
from sightline.report.write import write_report
from sightline.spec import Features, ImageSpec, Result
from sightline.studies.claims import verdicts
from sightline.studies.demo import Demo
from sightline.studies.verdict import Effect, Verdict
from sightline.training import recipes
from sightline.training.failures import Diverged, Stopped
from sightline.training.fit import fit
from sightline.training.hyperrule import bit_hyperrule, bit_hyperrule_lr, bit_hyperrule_sizes
from sightline.training.masked import MAE, MaskedPatches
from sightline.training.recipe import Recipe
from sightline.training.run import Curves, Run
from sightline.training.schedule import rate
from sightline.training.tasks import classification_loss
from sightline.training.transfer import layer_scales, transfer
from sightline.weights.adopt import adopt
from sightline.weights.load import load
from sightline.weights.report import Report, WeightsError
from sightline.weights.save import convert, save
from sightline.weights.zoo import Weights, add_weights, zoo

__version__ = "0.1.0"

__all__ = [
    "CKA",
    "MAE",
    "Arrays",
    "AttentionDistance",
    "AttentionMaps",
    "Attribution",
    "Augment",
    "BadImage",
    "Batches",
    "BiT",
    "BiTConfig",
    "BoxProbe",
    "Checked",
    "Classification",
    "Correspondence",
    "Cost",
    "Curves",
    "Dataset",
    "Demo",
    "DepthFilm",
    "Diverged",
    "Effect",
    "Episode",
    "Episodes",
    "Extracted",
    "Features",
    "FewShot",
    "Finding",
    "Folder",
    "Gaze",
    "Got",
    "HeadSubsets",
    "Hybrid",
    "HybridConfig",
    "ImageSpec",
    "KNNProbe",
    "LayerProbes",
    "LinearProbe",
    "Localisation",
    "Looked",
    "Manifest",
    "MaskedPatches",
    "MultiLabel",
    "NeighbourSimilarity",
    "ObjectFocus",
    "ObjectMass",
    "Part",
    "PatchFilters",
    "PoolingTwins",
    "PositionSimilarity",
    "Prediction",
    "Predictions",
    "PriorReport",
    "Probed",
    "ReaL",
    "ReceptiveField",
    "Recipe",
    "Report",
    "ResidualStudy",
    "Result",
    "Retrieval",
    "Run",
    "ScaleSimilarity",
    "Scene",
    "Scenes",
    "SegmentationHead",
    "Sharded",
    "Shards",
    "Stopped",
    "SuiteTask",
    "TestSets",
    "TooManyBad",
    "Verdict",
    "ViT",
    "ViTConfig",
    "Vtab",
    "Weights",
    "WeightsError",
    "WhatIf",
    "add_weights",
    "adopt",
    "anatomy",
    "attention",
    "attention_distance",
    "attention_entropy",
    "attention_growth",
    "attention_maps",
    "attention_rollout",
    "attribution",
    "basic_self_attention",
    "bit_hyperrule",
    "bit_hyperrule_lr",
    "bit_hyperrule_sizes",
    "build",
    "cam",
    "check",
    "cka",
    "classification_loss",
    "compare",
    "config",
    "contact_sheet",
    "convert",
    "cosine_similarity",
    "cost",
    "dataset",
    "depth_film",
    "draw",
    "episodes",
    "equivariance_error",
    "evaluate",
    "evaluate_sets",
    "extract",
    "fewshot",
    "fewshot_evaluator",
    "fit",
    "foreground",
    "frequency_similarity",
    "gaze",
    "get_dataset",
    "gradient_rollout",
    "head_subsets",
    "hsic",
    "invariance_error",
    "jacobian_locality",
    "layer_probes",
    "layer_scales",
    "linear_cka",
    "load",
    "localisation",
    "logits",
    "look",
    "mass_radii",
    "mean_distance",
    "mutual_knn",
    "names",
    "neighbour_similarity",
    "normalise",
    "object_focus",
    "object_mass",
    "open_images",
    "patch_correspondence",
    "patch_filters",
    "paths",
    "permutation_error",
    "permute_patches",
    "pooling_twins",
    "position_similarity",
    "predict",
    "prefix_mass",
    "prior_report",
    "probe",
    "rate",
    "receptive_field",
    "recipes",
    "record",
    "residual_study",
    "resize",
    "retrieval",
    "rollout",
    "sample_episode",
    "save",
    "save_figure",
    "scale_similarity",
    "scene_boxes",
    "scene_masks",
    "score",
    "score_labels",
    "score_real",
    "shard",
    "skip_against_branch",
    "split_classes",
    "suite",
    "token_jacobian",
    "token_probes",
    "transfer",
    "u_center",
    "unchanged_fraction",
    "verdicts",
    "vtab",
    "vtab_references",
    "what_if",
    "write_report",
    "zoo",
]

"""Sightline: train vision models, and see what they see."""

from sightline.analysis.equivariance import (
    equivariance_error,
    invariance_error,
    jacobian_locality,
    permutation_error,
    permute_patches,
    token_jacobian,
    unchanged_fraction,
)
from sightline.data.arrays import Arrays
from sightline.data.augment import Augment
from sightline.data.batches import Batches
from sightline.data.check import Checked, Finding, check
from sightline.data.dataset import Dataset
from sightline.data.errors import BadImage, TooManyBad
from sightline.data.folder import Folder, Manifest
from sightline.data.images import normalise, open_images
from sightline.data.named import Got, get_dataset
from sightline.data.scenes.scenes import Scene, Scenes
from sightline.data.sharding import Sharded, shard
from sightline.data.shards import Shards
from sightline.data.sheet import contact_sheet
from sightline.data.source import dataset
from sightline.data.suites import SuiteTask, suite
from sightline.evals.accuracy import Classification, TestSets, evaluate, evaluate_sets, predict, score
from sightline.evals.curves import Probed, probe
from sightline.evals.dense import BoxProbe, Correspondence, SegmentationHead, patch_correspondence
from sightline.evals.episodes import Episode, Episodes, cosine_similarity, episodes, sample_episode, split_classes
from sightline.evals.extract import extract
from sightline.evals.extracted import Extracted
from sightline.evals.fewshot import FewShot, fewshot, fewshot_evaluator
from sightline.evals.multilabel import MultiLabel, ReaL, score_labels, score_real
from sightline.evals.probes import KNNProbe, LinearProbe
from sightline.evals.retrieval import Retrieval, retrieval
from sightline.evals.truth import foreground, scene_boxes, scene_masks
from sightline.evals.vtab import Vtab, vtab, vtab_references
from sightline.models.anatomy import Part, anatomy
from sightline.models.bit import BiT, BiTConfig
from sightline.models.build import build, resize
from sightline.models.cost import Cost, attention_growth, cost
from sightline.models.hybrid import Hybrid, HybridConfig
from sightline.models.layers import attention, basic_self_attention
from sightline.models.taps import paths, record
from sightline.models.variants import config, names
from sightline.models.vit import ViT, ViTConfig
from sightline.spec import Features, ImageSpec, Result
from sightline.weights.adopt import adopt
from sightline.weights.load import load
from sightline.weights.report import Report, WeightsError
from sightline.weights.save import convert, save
from sightline.weights.zoo import Weights, add_weights, zoo

__version__ = "0.1.0"

__all__ = [
    "Arrays",
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
    "Dataset",
    "Episode",
    "Episodes",
    "Extracted",
    "Features",
    "FewShot",
    "Finding",
    "Folder",
    "Got",
    "Hybrid",
    "HybridConfig",
    "ImageSpec",
    "KNNProbe",
    "LinearProbe",
    "Manifest",
    "MultiLabel",
    "Part",
    "Probed",
    "ReaL",
    "Report",
    "Result",
    "Retrieval",
    "Scene",
    "Scenes",
    "SegmentationHead",
    "Sharded",
    "Shards",
    "SuiteTask",
    "TestSets",
    "TooManyBad",
    "ViT",
    "ViTConfig",
    "Vtab",
    "Weights",
    "WeightsError",
    "add_weights",
    "adopt",
    "anatomy",
    "attention",
    "attention_growth",
    "basic_self_attention",
    "build",
    "check",
    "config",
    "contact_sheet",
    "convert",
    "cosine_similarity",
    "cost",
    "dataset",
    "episodes",
    "equivariance_error",
    "evaluate",
    "evaluate_sets",
    "extract",
    "fewshot",
    "fewshot_evaluator",
    "foreground",
    "get_dataset",
    "invariance_error",
    "jacobian_locality",
    "load",
    "names",
    "normalise",
    "open_images",
    "patch_correspondence",
    "paths",
    "permutation_error",
    "permute_patches",
    "predict",
    "probe",
    "record",
    "resize",
    "retrieval",
    "sample_episode",
    "save",
    "scene_boxes",
    "scene_masks",
    "score",
    "score_labels",
    "score_real",
    "shard",
    "split_classes",
    "suite",
    "token_jacobian",
    "unchanged_fraction",
    "vtab",
    "vtab_references",
    "zoo",
]

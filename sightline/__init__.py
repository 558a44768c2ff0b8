"""Sightline: train vision models, and see what they see."""

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
from sightline.analysis.heads import HeadSubsets, head_subsets
from sightline.analysis.localisation import Localisation, localisation
from sightline.analysis.look import Looked, compare, look
from sightline.analysis.neighbours import NeighbourSimilarity, neighbour_similarity
from sightline.analysis.prior import PriorReport, prior_report
from sightline.analysis.receptive import ReceptiveField, mass_radii, receptive_field
from sightline.analysis.residual import ResidualStudy, residual_study, skip_against_branch
from sightline.analysis.rollout import AttentionMaps, attention_maps, attention_rollout, gradient_rollout, rollout
from sightline.analysis.scale import ScaleSimilarity, scale_similarity
from sightline.analysis.similarity import hsic, linear_cka, mutual_knn, u_center
from sightline.analysis.what_if import WhatIf, what_if
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
    "CKA",
    "Arrays",
    "AttentionDistance",
    "AttentionMaps",
    "Attribution",
    "Augment",
    "BadImage",
    "Batches",
    "BiT",
    "BiTConfig",
    "Checked",
    "Cost",
    "Dataset",
    "Features",
    "Finding",
    "Folder",
    "Got",
    "HeadSubsets",
    "Hybrid",
    "HybridConfig",
    "ImageSpec",
    "Localisation",
    "Looked",
    "Manifest",
    "NeighbourSimilarity",
    "ObjectMass",
    "Part",
    "PatchFilters",
    "PositionSimilarity",
    "PriorReport",
    "ReceptiveField",
    "Report",
    "ResidualStudy",
    "Result",
    "ScaleSimilarity",
    "Scene",
    "Scenes",
    "Sharded",
    "Shards",
    "SuiteTask",
    "TooManyBad",
    "ViT",
    "ViTConfig",
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
    "build",
    "cam",
    "check",
    "cka",
    "compare",
    "config",
    "contact_sheet",
    "convert",
    "cost",
    "dataset",
    "equivariance_error",
    "get_dataset",
    "gradient_rollout",
    "head_subsets",
    "hsic",
    "invariance_error",
    "jacobian_locality",
    "linear_cka",
    "load",
    "localisation",
    "look",
    "mass_radii",
    "mean_distance",
    "mutual_knn",
    "names",
    "neighbour_similarity",
    "normalise",
    "object_mass",
    "open_images",
    "patch_filters",
    "paths",
    "permutation_error",
    "permute_patches",
    "position_similarity",
    "prefix_mass",
    "prior_report",
    "receptive_field",
    "record",
    "residual_study",
    "resize",
    "rollout",
    "save",
    "scale_similarity",
    "shard",
    "skip_against_branch",
    "suite",
    "token_jacobian",
    "u_center",
    "unchanged_fraction",
    "what_if",
    "zoo",
]

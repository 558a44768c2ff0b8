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
    "BiT",
    "BiTConfig",
    "Cost",
    "Features",
    "Hybrid",
    "HybridConfig",
    "ImageSpec",
    "Part",
    "Report",
    "Result",
    "ViT",
    "ViTConfig",
    "Weights",
    "WeightsError",
    "add_weights",
    "adopt",
    "anatomy",
    "attention",
    "attention_growth",
    "basic_self_attention",
    "build",
    "config",
    "convert",
    "cost",
    "equivariance_error",
    "invariance_error",
    "jacobian_locality",
    "load",
    "names",
    "paths",
    "permutation_error",
    "permute_patches",
    "record",
    "resize",
    "save",
    "token_jacobian",
    "unchanged_fraction",
    "zoo",
]

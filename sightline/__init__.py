"""Sightline: train vision models, and see what they see."""

from sightline.spec import Features, ImageSpec, Result

__version__ = "0.1.0"

__all__ = [
    "Features",
    "ImageSpec",
    "Result",
]

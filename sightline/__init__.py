"""Sightline: train vision models, and see what they see."""

from sightline.data.arrays import Arrays
from sightline.data.augment import Augment
from sightline.data.batches import Batches
from sightline.data.dataset import Dataset
from sightline.data.errors import BadImage, TooManyBad
from sightline.data.folder import Folder, Manifest
from sightline.data.images import normalise, open_images
from sightline.data.scenes.scenes import Scene, Scenes
from sightline.data.source import dataset
from sightline.spec import Features, ImageSpec, Result

__version__ = "0.1.0"

__all__ = [
    "Arrays",
    "Augment",
    "BadImage",
    "Batches",
    "Dataset",
    "Features",
    "Folder",
    "ImageSpec",
    "Manifest",
    "Result",
    "Scene",
    "Scenes",
    "TooManyBad",
    "dataset",
    "normalise",
    "open_images",
]

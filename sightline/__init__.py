"""Sightline: train vision models, and see what they see."""

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
from sightline.spec import Features, ImageSpec, Result

__version__ = "0.1.0"

__all__ = [
    "Arrays",
    "Augment",
    "BadImage",
    "Batches",
    "Checked",
    "Dataset",
    "Features",
    "Finding",
    "Folder",
    "Got",
    "ImageSpec",
    "Manifest",
    "Result",
    "Scene",
    "Scenes",
    "Sharded",
    "Shards",
    "SuiteTask",
    "TooManyBad",
    "check",
    "contact_sheet",
    "dataset",
    "get_dataset",
    "normalise",
    "open_images",
    "shard",
    "suite",
]

"""The command line: few verbs, each a thin call of one public function. Importing a room's file adds its verbs."""

from sightline.cli import analysis, data, demo, evals, models, predict, report, training, weights
from sightline.cli.shell import main

__all__ = ["analysis", "data", "demo", "evals", "main", "models", "predict", "report", "training", "weights"]

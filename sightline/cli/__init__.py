"""The command line: few verbs, each a thin call of one public function. Importing a room's file adds its verbs."""

from sightline.cli import demo, models, weights
from sightline.cli.shell import main

__all__ = ["demo", "main", "models", "weights"]

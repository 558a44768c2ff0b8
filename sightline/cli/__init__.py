"""The command line: few verbs, each a thin call of one public function. A file per room, added by its import."""

from sightline.cli import data  # noqa: F401  (importing it adds its verbs)
from sightline.cli.shell import main

__all__ = ["main"]

"""The command line: few verbs, each a thin call of one public function."""

from sightline.cli.shell import main

__all__ = ["main"]

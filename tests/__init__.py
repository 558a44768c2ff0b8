"""Tests, in the same rooms as the package. `shapes` is imported here because pyproject.toml names it to the checker."""

from tests import shapes

__all__ = ["shapes"]

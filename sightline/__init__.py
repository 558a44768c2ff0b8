"""Sightline: train vision models, and see what they see."""

import lazy_loader as lazy

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""Observing any model: its parts, taps, attention, choice of tokens and layers, switches, image sources."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

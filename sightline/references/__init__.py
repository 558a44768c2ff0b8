"""What the papers report, as data: tables with their sources, core-days, and claims checked against the numbers."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

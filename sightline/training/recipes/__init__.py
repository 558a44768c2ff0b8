"""Recipes: functions that return a `Recipe`. Each states its paper, its command, and what to expect.

What a recipe may know about the run has the same name everywhere: `model` (its name), `data` (its name),
`num_images` (training images) and `image_area` (pixels of one image). `get` passes on what is known.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

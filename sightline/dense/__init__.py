"""Dense tasks on any backbone: segmentation and detection with masks, their heads, losses and metrics"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

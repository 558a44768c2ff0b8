"""Names of pre-training data, and the loss for several labels per image."""

from typing import Any

JFT, I21K, I1K = "jft", "imagenet21k", "imagenet"
# as in big_vision's configs; the ViT paper names no loss
SEVERAL_LABELS: dict[str, Any] = {"loss": "sigmoid", "head_bias": -10.0}

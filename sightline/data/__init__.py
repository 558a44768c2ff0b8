"""Pixels to tensors: images, augmentation, datasets, shards and the built-in picture world. No model in here."""

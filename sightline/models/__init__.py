"""Tensors to tensors: ViT, BiT and hybrid models, and the means to look inside. No files, no pixels."""

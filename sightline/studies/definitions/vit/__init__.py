"""Studies of the ViT paper (Dosovitskiy et al. 2020)."""

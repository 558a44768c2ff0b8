"""Optimizers, learning rates, weight averaging, and which layers are trained."""

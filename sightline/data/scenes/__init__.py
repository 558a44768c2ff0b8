"""Synthetic scenes with ground truth, drawn on demand, deterministic by (seed, index)."""

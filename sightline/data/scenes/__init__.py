"""The built-in picture world: labelled scenes with ground truth, drawn on demand, deterministic by (seed, index)."""

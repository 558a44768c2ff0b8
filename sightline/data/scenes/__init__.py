"""The built-in image world: labeled scenes with ground truth, drawn on demand, deterministic by (seed, index)."""

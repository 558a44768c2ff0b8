"""Studies of what ViTs see (Raghu et al. 2021)."""

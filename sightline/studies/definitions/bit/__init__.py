"""Studies of the BiT paper (Kolesnikov et al. 2019)."""

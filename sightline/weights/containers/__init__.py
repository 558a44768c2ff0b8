"""The file types in which weights are stored."""

"""Tar shards in WebDataset format."""

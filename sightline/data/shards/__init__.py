"""Tar shards, written and read."""

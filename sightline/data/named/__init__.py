"""Datasets by name: the table, how they are fetched, and how they are kept on disk."""

"""Datasets by name: the table, how they are downloaded, and how they are stored."""

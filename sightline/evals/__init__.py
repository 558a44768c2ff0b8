"""Measurements on frozen features and on predictions: one pass over the pictures, many numbers from it."""

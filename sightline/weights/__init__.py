"""Weights in and out, with proof."""

"""Saved results to one self-contained page."""

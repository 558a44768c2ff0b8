"""Data augmentation."""

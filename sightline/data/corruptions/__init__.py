"""Corrupted images by rule: fifteen kinds at five severities, after Hendrycks & Dietterich 2019."""

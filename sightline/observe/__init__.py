"""Watching any model: what is where, taps, attention, which tokens and layers, switches, image sources."""

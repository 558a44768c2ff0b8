"""Linear and nearest-neighbor probes on frozen features."""

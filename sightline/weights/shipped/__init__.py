"""Small models of our own as package data: `NAME.safetensors` each, packed by `python -m benchmarks.ship`."""

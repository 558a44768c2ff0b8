"""Attacks: mutated files of every type that is read, bombs, what the system refuses. `make attack` is the large run."""

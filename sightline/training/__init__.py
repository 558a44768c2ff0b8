"""Training and transfer: recipes, the loop, the run folder, one machine or many."""

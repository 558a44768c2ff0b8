"""How well a model does where images differ from those it was trained on: other test sets, corrupted images."""

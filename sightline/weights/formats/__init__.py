"""How each library names its weights."""

"""How similar representations are."""

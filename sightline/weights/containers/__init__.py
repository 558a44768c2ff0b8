"""The files weights come in."""

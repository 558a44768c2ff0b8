"""What training may do to an image."""

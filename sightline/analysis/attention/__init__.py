"""What heads attend to."""

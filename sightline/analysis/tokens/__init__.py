"""What single tokens hold, and what hangs on them."""

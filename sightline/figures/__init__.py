"""Results to pictures: one short function per type of result."""

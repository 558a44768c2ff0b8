"""Running studies: what is trained and measured, where it is kept, and who does the work."""

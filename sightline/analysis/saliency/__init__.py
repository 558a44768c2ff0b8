"""What a decision rests on."""

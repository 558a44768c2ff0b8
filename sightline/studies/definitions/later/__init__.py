"""Studies of questions that the papers raise for applications."""

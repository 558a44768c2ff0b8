"""Before the first step: checks, the plan, memory and speed."""

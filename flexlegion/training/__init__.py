"""Execution on Legion: the plan as a running program, and the training loops."""

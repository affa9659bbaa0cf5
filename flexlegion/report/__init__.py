"""Reports: what was simulated or measured, in forms that people and their tools read."""

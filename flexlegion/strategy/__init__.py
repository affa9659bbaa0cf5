"""Configurations, strategies, their files; the known strategies, and SBP signatures."""

"""Configurations, strategies, their files; how operators are split; SBP signatures."""

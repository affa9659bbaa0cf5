"""The search for a fast strategy (FlexFlow, section 6)."""

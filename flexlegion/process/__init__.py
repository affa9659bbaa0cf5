"""This process: which of several ranks it is, and how signals end it."""

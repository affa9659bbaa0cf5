"""Operators that are added to a graph in place of what somebody wrote: graph to graph."""

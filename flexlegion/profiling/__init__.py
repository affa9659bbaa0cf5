"""Measurements on the machine that runs: tasks, links, devices, whole iterations."""

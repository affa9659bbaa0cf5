"""What training aims at and how: losses, metrics, optimizers, schedules, precision."""

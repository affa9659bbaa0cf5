"""What tasks cost: analytic estimates, measured times, and the data base that keeps these."""

COSTS = ("auto", "analytic", "measured")  # as they are asked for

"""What is simulated, at what costs, and the simulator."""

"""How models are named, and a model together with how it is trained."""

"""Operators: one file a family; each states shapes, SOAP dimensions and access maps."""

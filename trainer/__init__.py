"""Span trees to transitions, credit, advantages, a verl update, and new weights for the live engine."""

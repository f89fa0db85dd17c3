"""Demonstrations, durations, and supervised flow matching (the warm start)."""

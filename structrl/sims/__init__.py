"""Simulators (torch-free): contract, vocabularies, condition programs, and the embedded tabletop."""

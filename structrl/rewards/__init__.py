"""Structured reward: pure functions on tensors, and the TorchRL transform that carries their state."""

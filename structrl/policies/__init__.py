"""Flow policies: the SDE, the VLA protocol, the actor-critic and the compact VLA."""

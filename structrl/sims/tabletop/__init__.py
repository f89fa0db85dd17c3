"""The embedded simulator: tabletop scenes on `mujoco.batch`."""

"""The chunk environment: one simulator batch as a TorchRL `EnvBase`."""

"""The study: does structured reward learn a long task in fewer steps than sparse reward? See docs/study/protocol.md."""

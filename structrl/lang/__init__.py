"""The task language: text to a checked syntax tree to a `TaskSpec`. Imports lark only."""

"""Episode files, success rates with intervals, and explanations of credit."""

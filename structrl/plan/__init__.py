"""Plans: a task's subtasks, order, durations and worth as tensors."""

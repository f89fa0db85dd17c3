"""Plans: a task's subtasks, order, durations and worth as tensors."""

from structrl.plan.plan import Plan, PlanRows, StackedPlans, compile_plan, stack_plans

__all__ = ["Plan", "PlanRows", "StackedPlans", "compile_plan", "stack_plans"]

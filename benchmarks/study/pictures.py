"""Draws docs/study/results.csv: python -m benchmarks.study.pictures [FOLDER] (needs matplotlib)."""

import statistics
import sys
from pathlib import Path

from benchmarks.study.arms import ARMS
from benchmarks.study.results import Results, load


def draw(results: Results, folder: Path) -> None:
    """success.png: every run thin, the mean over blocks thick. subtasks.png: mean rate of each subtask by arm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    arms = [arm for arm in ARMS if any(a == arm for a, _ in results)]
    colours = {arm: f"C{i}" for i, arm in enumerate(arms)}

    def mean_curve(arm: str, metric: str) -> tuple[list[float], list[float]]:
        """Evaluations happen at the same iterations: the mean of their steps and of their values."""
        curves = [metrics[metric] for (a, _), metrics in results.items() if a == arm]
        points = list(zip(*curves, strict=True))
        return tuple([statistics.mean(p[i] for p in at) for at in points] for i in (0, 1))  # type: ignore[return-value]

    figure, axes = plt.subplots(figsize=(7, 4))
    for arm in arms:
        runs = [metrics["success"] for (a, _), metrics in results.items() if a == arm]
        for curve in runs:
            axes.plot(*zip(*curve, strict=True), color=colours[arm], linewidth=0.6, alpha=0.5)
        axes.plot(*mean_curve(arm, "success"), color=colours[arm], linewidth=2.5, label=f"{arm} ({len(runs)} blocks)")
    axes.set(xlabel="environment steps", ylabel="success (256 episodes, ODE policy)", ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "success.png", dpi=110)

    names = [m for m in next(iter(results.values())) if m.startswith("subtask/")]
    if names:
        figure, grid = plt.subplots(2, (len(names) + 1) // 2, figsize=(12, 5), sharex=True, sharey=True, squeeze=False)
        for name, axes in zip(names, grid.flat, strict=False):
            for arm in arms:
                axes.plot(*mean_curve(arm, name), color=colours[arm], label=arm)
            axes.set(title=name.split("/")[1], ylim=(0, 1))
        grid.flat[0].legend()
        figure.supxlabel("environment steps")
        figure.supylabel("share of evaluation episodes")
        figure.tight_layout()
        figure.savefig(folder / "subtasks.png", dpi=110)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/study")
    results = load(folder / "results.csv")
    if not results:
        sys.exit(f"no runs in {folder / 'results.csv'}; python -m benchmarks.study TASK --report writes it")
    try:
        draw(results, folder)
    except ModuleNotFoundError as error:
        sys.exit(f"pictures need {error.name}: pip install matplotlib")
    print(f"{folder / 'success.png'}, {folder / 'subtasks.png'}")


if __name__ == "__main__":
    main()

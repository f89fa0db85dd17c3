"""Progress of a run: a bar over iterations, and one below it over the episodes being collected.

Where standard error is not a terminal (a log file), one line per iteration instead.
"""

import sys
from collections.abc import Callable

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

# short name -> metric of PPO, shown with each iteration where there is one
SHOWN = {
    "success": "charts/success",
    "eval": "evaluate/charts/success",
    "return": "charts/episodic_return",
    "KL": "losses/approx_kl",
    "SPS": "charts/SPS",
    "simulate s": "time/simulate",
    "observe s": "time/observe",
    "infer s": "time/infer",
    "update s": "time/update",
    "loss": "losses/flow_matching",  # of the warm start
}


class IterationBar(ProgressBar):
    """Bars of an RL run."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self.terminal = sys.stderr.isatty()
        self.iterations: tqdm | None = None
        self.inner: tqdm | None = None

    def disable(self) -> None:
        """Show nothing; Lightning calls it on all ranks but the first."""
        self.enabled = False

    def episodes(self, what: str, total: int) -> Callable[[int, int], None] | None:
        """A `progress` of `run_episodes` that draws the inner bar; None where there is nothing to draw on."""
        if not (self.enabled and self.terminal):
            return None
        bar = self.inner = tqdm(total=total, desc=what, unit="episode", leave=False, position=1, dynamic_ncols=True)

        def progress(finished: int, steps: int) -> None:
            bar.n = finished
            bar.set_postfix_str(f"{steps} steps", refresh=False)
            bar.update(0)
            if finished == total:
                bar.close()

        return progress

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar over iterations."""
        if self.enabled and self.terminal:
            self.iterations = tqdm(
                total=trainer.max_epochs,
                initial=trainer.current_epoch,
                desc="iterations",
                unit="iteration",
                dynamic_ncols=True,
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """One iteration, its validation included, is done."""
        metrics = getattr(pl_module, "metrics", {})
        shown = {name: f"{metrics[key]:.3g}" for name, key in SHOWN.items() if key in metrics}
        if self.iterations is not None:
            self.iterations.set_postfix(shown, refresh=False)
            self.iterations.update(1)
        elif self.enabled:
            text = "  ".join(f"{name} {value}" for name, value in shown.items())
            print(f"iteration {trainer.current_epoch + 1}/{trainer.max_epochs}  {text}", file=sys.stderr, flush=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bars."""
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close the bars, so that what is printed next has a line of its own."""
        self._close()

    def _close(self) -> None:
        for bar in (self.inner, self.iterations):
            if bar is not None:
                bar.close()
        self.iterations = self.inner = None

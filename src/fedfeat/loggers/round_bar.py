"""The bar of a run's rounds: how many of how many, what time is left, and as many of the metrics as the line holds."""

from contextlib import suppress

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

# What a terminal echoes at Ctrl-C ("^C") must not begin a new line, or the bar would be drawn below itself.
_ECHO = 3
_WIDE = 100


class Terminal(Console):
    """Rich's console, of which nothing is left but silence where its reader has gone, as ``head`` does."""

    def on_broken_pipe(self) -> None:
        """Rich's hook: write no more; by default it ends the process."""
        with suppress(SystemExit):
            super().on_broken_pipe()


class RoundBar(Progress):
    """Rich's progress with one task, which `show` moves.

    Args:
        num_rounds: Number of the last round.
        done: The round that has been reached.
        console: The terminal.
    """

    def __init__(self, num_rounds: int, done: int, console: Console) -> None:
        self._terminal = console  # Rich asks for what is drawn before it knows the console itself.
        super().__init__(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=20 if console.width >= _WIDE else 10, table_column=Column(no_wrap=True)),
            _TimeLeft(table_column=Column(no_wrap=True)),
            _Metrics(),
            console=console,
            # Rich forgets after 30 s how long a round took, and would know no time left where rounds are longer.
            speed_estimate_period=float("inf"),
        )
        self._rounds = self.add_task("", total=num_rounds, completed=done, metrics=())

    def show(self, round_idx: int, metrics: tuple[str, ...]) -> None:
        """Show a round and its metrics, the most important first."""
        self.update(self._rounds, completed=round_idx, metrics=metrics)

    def get_renderable(self) -> RenderableType:
        """Rich's hook: what is drawn."""
        return Constrain(self.make_tasks_table(self.tasks), max(1, self._terminal.width - _ECHO))


class _TimeLeft(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return super().render(task).copy().append(" left")


class _Metrics(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        return _AsManyAsFit(task.fields["metrics"])


class _AsManyAsFit:
    """Parts of a line, of which the last are left out where there is no room: a number is never cut."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self._parts = parts

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        whole = len("  ".join(self._parts))
        return Measurement(min(whole, options.max_width), min(whole, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = self._parts
        while len("  ".join(parts)) > options.max_width:
            parts = parts[:-1]
        yield Text("  ".join(parts), no_wrap=True)

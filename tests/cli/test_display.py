import io
from dataclasses import dataclass

from rich.console import Console

from jaxgraph.cli.display import EpochBar, StepBar, byte_text, two_columns


@dataclass(frozen=True)
class Record:
    epoch: int
    loss: float
    val_accuracy: float
    seconds: float
    waited: float | None = None


def shown(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_two_columns_formats_numbers():
    text = shown(two_columns("Title", {"edges": 1234567, "ratio": 1.23456, "name": "cora"}))
    assert "Title" in text and "1,234,567" in text and "1.235" in text and "cora" in text
    assert [byte_text(x) for x in (999, 1000, 7_100_000_000_000)] == ["999 B", "1.0 kB", "7.1 TB"]


def epochs_shown(done: int, of: int, *, terminal: bool) -> list[str]:
    file = io.StringIO()
    with EpochBar(of, Console(file=file, width=120, force_terminal=terminal)) as bar:
        for epoch in range(1, done + 1):
            bar.update(Record(epoch, 0.6 - 0.1 * epoch, 0.5 * epoch - 0.25, 0.0125))
    return file.getvalue().rstrip().splitlines()


def test_a_file_gets_a_line_at_every_tenth_of_the_epochs():
    lines = epochs_shown(25, 100, terminal=False)
    assert lines == [
        "epoch 10/100  loss -0.4000  val 475.00%  12.5 ms",
        "epoch 20/100  loss -1.4000  val 975.00%  12.5 ms",
    ]


def test_the_bar_shows_the_last_epoch():
    (*_, last) = (line for line in epochs_shown(2, 3, terminal=True) if "2/3" in line)
    assert "2/3" in last and "loss 0.4000" in last and "val 75.00%" in last and "12.5 ms" in last


def test_mini_batches_show_the_share_of_time_that_devices_waited():
    file = io.StringIO()
    with EpochBar(3, Console(file=file, width=120)) as bar:
        bar.update(Record(1, 0.5, 0.5, 0.1, waited=0.034))
        bar.update(Record(2, 0.5, 0.5, 0.1, waited=0.25))
    assert "100.0 ms  waited 3%" in file.getvalue()


def test_a_long_epoch_shows_how_much_of_it_is_done():
    file = io.StringIO()
    with EpochBar(3, Console(file=file, width=120, force_terminal=True), lambda: 0.25) as bar:
        bar.update(Record(1, 0.5, 0.5, 0.1))
    assert "25% of the next" in file.getvalue()


def test_a_step_that_has_ended_is_a_line():
    file = io.StringIO()
    with StepBar(Console(file=file, width=120)) as bar:
        for step, done in (("read", 1), ("read", 2), ("cut", 0)):
            bar.update(step, done, 2)
    assert [line.partition(":")[0] for line in file.getvalue().splitlines()] == ["read", "cut"]

"""The simulator's predictions, against files and against Figure 5 of the FlexFlow paper."""

from __future__ import annotations

import pytest
from golden import FOLDER, GOLDEN, figure5, text_of

from flexlegion.sim.simulator import SIMULATED, Simulation, Timeline, full


@pytest.mark.parametrize("name", GOLDEN)
def test_predictions_are_those_of_the_file(name: str) -> None:
    """Every change of the predictions is noticed; see golden.py for changes that are meant."""
    assert text_of(name).splitlines() == (FOLDER / f"{name}.txt").read_text().splitlines()


def forward(timeline: Timeline) -> dict[str, tuple[int, int, int]]:
    """Ready, start and end of the forward tasks of o1 to o6, and of the transfers between them."""
    result = {}
    for row in timeline.tasks:
        name = timeline.describe(row)
        if row["hop"] >= 0:
            wanted = row["flow"] == 0 and name.startswith("o")
        else:
            wanted = name.startswith("forward o")
            name = name.removeprefix("forward ")
        if wanted:
            result[name] = (int(row["ready_time"]), int(row["start_time"]), int(row["end_time"]))
    return result


# The text gives the figure's structure: a 3-layer RNN of embedding, recurrent and linear layer, the
# operators of each layer on a GPU of their own; o3 is cut into tasks, in Figure 5d into one. Its
# numbers stand in the picture alone, so these are chosen: two steps, two tasks an operator,
# exeTimes of 2, 3 and 2 units, transfers of 1 unit; a unit is 100 ns. Both loads of tokens come
# first, 1 ns each. The second steps' tasks of the first sample are ready 1 ns before the first
# steps' tasks of the second sample, so on the first GPU they go first.
FIGURE_5C = {
    "o1 [0]": (1, 2, 202),
    "o2 [0]": (1, 202, 402),
    "o1 [1]": (2, 402, 602),
    "o2 [1]": (2, 602, 802),
    "o1.output [0] -> gpu:1": (202, 202, 302),
    "o2.output [0] -> gpu:1": (402, 402, 502),
    "o1.output [1] -> gpu:1": (602, 602, 702),
    "o2.output [1] -> gpu:1": (802, 802, 902),
    "o3 [0]": (302, 302, 602),
    "o4 [0]": (602, 602, 902),  # waits for o3 [0], not for its input
    "o3 [1]": (702, 902, 1202),
    "o4 [1]": (1202, 1202, 1502),
    "o3.y [0] -> gpu:2": (602, 602, 702),
    "o4.y [0] -> gpu:2": (902, 902, 1002),
    "o3.y [1] -> gpu:2": (1202, 1202, 1302),
    "o4.y [1] -> gpu:2": (1502, 1502, 1602),
    "o5 [0]": (702, 702, 902),
    "o6 [0]": (1002, 1002, 1202),
    "o5 [1]": (1302, 1302, 1502),
    "o6 [1]": (1602, 1602, 1802),
}

# |c3| = 1: o3 waits for both samples and takes 6 units; its output goes in one transfer of 2 units.
FIGURE_5D = FIGURE_5C | {
    "o3 [0]": (702, 702, 1302),
    "o4 [0]": (1302, 1302, 1602),
    "o4 [1]": (1302, 1602, 1902),
    "o3.y [0] -> gpu:2": (1302, 1302, 1502),
    "o4.y [0] -> gpu:2": (1602, 1602, 1702),
    "o4.y [1] -> gpu:2": (1902, 1902, 2002),
    "o5 [0]": (1502, 1502, 1702),
    "o5 [1]": (1502, 1702, 1902),
    "o6 [0]": (1702, 1902, 2102),
    "o6 [1]": (2002, 2102, 2302),
}
del FIGURE_5D["o3 [1]"], FIGURE_5D["o3.y [1] -> gpu:2"]


def test_figure_5c() -> None:
    """The full simulation algorithm's timeline of the example strategy."""
    assert forward(full(*figure5())) == FIGURE_5C


def test_figure_5d() -> None:
    """The delta simulation algorithm's after reducing the parallelism of o3 to 1."""
    problem, strategy = figure5()
    changed = strategy.changed({"o3": figure5(tasks_of_o3=1)[1]["o3"]})
    simulation = Simulation(problem, strategy)
    assert simulation.propose({"o3": changed["o3"]}, "delta") == SIMULATED
    assert forward(simulation.timeline()) == FIGURE_5D
    assert forward(full(problem, changed)) == FIGURE_5D
    simulation.reject()
    assert forward(simulation.timeline()) == FIGURE_5C

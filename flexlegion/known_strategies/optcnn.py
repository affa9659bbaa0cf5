"""OptCNN's strategy (FlexFlow, section 8.2.3), as far as a start or a comparison needs it."""

from flexlegion.known_strategies.registry import own_strategy
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import Strategy


@own_strategy("optcnn", needs_costs=True)
def optcnn(problem: Problem) -> Strategy:
    """The strategy of least summed costs; see `flexlegion.searches.optcnn`."""
    from flexlegion.searches import optcnn as search  # with NumPy, which help does without

    return search.optcnn(problem)

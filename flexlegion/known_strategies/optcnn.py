"""OptCNN's strategy (FlexFlow, section 8.2.3), as far as a start or a comparison needs it."""

from flexlegion.base.errors import DoesNotApply
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.sim.problem import Problem
from flexlegion.strategy.strategy import Strategy

# What a message counts as at least, in `optcnn-coarse`: some microseconds of a network's time. Of 4
# to 32 KiB, tried on six networks and 16 and 64 GPUs, this gave fast starts of few messages.
COARSE_MESSAGE = 8192
# On fewer devices, there are few messages.
FEW_DEVICES = 8


@own_strategy("optcnn", needs_costs=True)
def optcnn(problem: Problem) -> Strategy:
    """The strategy of least summed costs; see `flexlegion.searches.optcnn`."""
    from flexlegion.searches import optcnn as search  # with NumPy, which help does without

    return search.optcnn(problem)


@own_strategy("optcnn-coarse", needs_costs=True)
def optcnn_coarse(problem: Problem) -> Strategy:
    """The same where each message between two devices counts as 8 KiB at least.

    On many devices, OptCNN's minimum is made of many messages of some bytes each, which makes it
    slow to simulate, so that a search from it makes few proposals.
    """
    from flexlegion.searches import optcnn as search

    if len(problem.devices) <= FEW_DEVICES:
        raise DoesNotApply(
            f"strategy 'optcnn-coarse' is for more than {FEW_DEVICES} devices; on fewer, take "
            "'optcnn'"
        )
    configs = search.optcnn(problem, least_message=COARSE_MESSAGE)
    return Strategy(configs, "strategy 'optcnn-coarse'")

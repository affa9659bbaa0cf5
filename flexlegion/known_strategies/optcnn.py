"""OptCNN's strategy (FlexFlow, section 8.2.3), as far as a start or a comparison needs it."""

from flexlegion.known_strategies.registry import own_strategy
from flexlegion.searches.optcnn import optcnn

own_strategy("optcnn", needs_costs=True)(optcnn)

"""Small models that learn to recall: the tasks, a two-layer model with one of five memories, and its training.

``tasks`` draws sequences of writes and queries, ``models`` holds the model, ``training`` trains many runs side by side.
"""

from kda_lab.data.lazy import modules, names

__getattr__, __dir__ = names(__name__, modules(__file__))

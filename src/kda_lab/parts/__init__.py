"""What a layer is made of beside its rule: decays and gates, feature maps and norms, softmax attention, order, seeded
inputs.
"""

from kda_lab.data.lazy import modules, names

__getattr__, __dir__ = names(__name__, modules(__file__))

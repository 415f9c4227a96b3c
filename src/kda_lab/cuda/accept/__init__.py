"""Does a kernel compute the rules, on this GPU, and how fast? `python -m kda_lab.cuda.accept.{chunk,decode,hopper}`"""

from kda_lab.data.lazy import modules, names

__getattr__, __dir__ = names(__name__, modules(__file__))

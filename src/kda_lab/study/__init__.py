"""What follows from the rules: learning, capacity, recall, counted costs, bytes and operations of real models."""

from kda_lab.data.lazy import modules, names

__getattr__, __dir__ = names(__name__, modules(__file__))

"""What the pages of the book show: figures, widgets, recorded cells, the symbol table."""

from kda_lab.data.lazy import modules, names

__getattr__, __dir__ = names(__name__, modules(__file__))

"""What the pages of the book show: figures, widgets, recorded cells, the symbol table."""

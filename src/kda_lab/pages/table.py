"""A table that a notebook shows."""


class Table:
    """Rows that a notebook shows as a table.

    >>> Table(["a", "b"], [["1", "2"]])
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """

    def __init__(self, head, rows):
        self.head, self.rows = head, rows

    def _repr_markdown_(self):
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(r) + " |" for r in lines)

    def __repr__(self):
        return self._repr_markdown_()

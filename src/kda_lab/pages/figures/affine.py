"""Pictures of the chapter on affine steps."""

from kda_lab.pages.figures import Board, Picture


def chain_and_tree(n=8) -> Picture:
    """n steps one after the other, and the same steps joined in pairs.

    >>> chain_and_tree(4)
    <figure: Above, 4 boxes in a row, each waiting for the one before. ...>
    """
    board = Board(440, 300)
    width, gap, left = 36, 15, 34
    x = [left + t * (width + gap) for t in range(n)]
    board.text(226, 12, f"one after the other: {n} turns", bold=True)
    board.text(11, 52, "S_0", role="state")
    for t in range(n):
        board.box(x[t], 36, width, 32, str(t + 1), role="state")
        board.arrow((x[t] - gap + 1 if t else 22, 52), (x[t] - 1, 52))
    level, y, turns = [(x[t] + width / 2, str(t + 1)) for t in range(n)], 262, 0
    board.text(226, 100, f"joined in pairs: {(n - 1).bit_length()} turns", bold=True)
    while True:
        for centre, label in level:
            size = max(width, 11 * len(label))
            board.box(centre - size / 2, y, size, 26, label, role="key" if turns else "state")
        if len(level) == 1:
            break
        upper = []
        for (a, first), (b, last) in zip(level[::2], level[1::2]):
            middle = (a + b) / 2
            label = f"{first.split('–')[0]}–{last.split('–')[-1]}"
            board.arrow((a, y), (middle - 7, y - 21))
            board.arrow((b, y), (middle + 7, y - 21))
            upper.append((middle, label))
        level, y, turns = upper, y - 48, turns + 1
    return board.show(
        f"Above, {n} boxes in a row, each waiting for the one before. Below, a tree over the same {n} boxes: pairs, "
        "pairs of pairs, "
        "and one box for all."
    )


def stages(chunks=4) -> Picture:
    """The three stages of a chunked kernel over so many chunks; only the middle one runs from left to right.

    >>> stages(3)
    <figure: Three rows of 3 boxes, one box for each chunk. Arrows lead ...>
    """
    board = Board(476, 250)
    width, left = 84, 88
    x = [left + c * 100 for c in range(chunks)]
    rows = [
        (30, "key", "A M U W K_g", "stage 1", "all at once"),
        (110, "state", "E, S", "stage 2", "in order"),
        (190, "value", "O", "stage 3", "all at once"),
    ]
    for c in range(chunks):
        board.text(x[c] + width / 2, 12, f"chunk {c + 1}", size=12)
    for y, role, label, name, when in rows:
        board.text(4, y + 12, name, anchor="start", bold=True)
        board.text(4, y + 30, when, anchor="start", size=11)
        for c in range(chunks):
            board.box(x[c], y, width, 42, label, role=role)
    for c in range(chunks):
        middle = x[c] + width / 2
        board.arrow((middle, 72), (middle, 109))
        board.arrow((middle, 152), (middle, 189))
        board.arrow((x[c] - 15, 131), (x[c] - 1, 131), role="state")
    board.text(x[0] - 12, 116, "S_0", size=12, role="state")
    return board.show(
        f"Three rows of {chunks} boxes, one box for each chunk. Arrows lead down from preparation to residuals and "
        "state to output; "
        "only the boxes of the middle row are linked from left to right."
    )

"""The picture of the front page."""

from kda_lab.pages.figures import Board


def ladder():
    """Four rules, one change each: what multiplies the old state, and what is written.

    >>> ladder()
    <figure: Four update rules from linear attention to Kimi Delta ...>
    """
    board = Board(560, 250)
    rows = [
        ("linear attention", "S", "v k^T", "adds"),
        ("DeltaNet", "S", "β (v − S k) k^T", "reads, then writes what is missing"),
        ("Gated DeltaNet", "α S", "β (v − α S k) k^T", "forgets at one rate, then corrects"),
        ("Kimi Delta Attention", "S Diag(α)", "β (v − S Diag(α) k) k^T", "forgets at one rate a channel"),
    ]
    for i, (name, keep, write, says) in enumerate(rows):
        y = 14 + 60 * i
        board.text(6, y + 12, name, anchor="start", bold=True)
        board.text(6, y + 31, says, anchor="start", size=11)
        board.box(236, y, 96, 40, keep, role="decay" if i > 1 else "state")
        board.text(345, y + 20, "+")
        board.box(358, y, 196, 40, write, role="value", hollow=i > 0)
        if i < 3:
            board.arrow((284, y + 41), (284, y + 59))
    return board.show(
        "Four update rules from linear attention to Kimi Delta Attention, each with what is kept of the state and "
        "what is written."
    )

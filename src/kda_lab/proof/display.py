"""Verdicts on a page: a small table that says what holds, how far, and which mistakes were caught."""

from html import escape


class Verdicts(list):
    """A list of verdicts that a notebook shows as a table.

    >>> Verdicts()
    0 of 0 equations hold, 0 of 0 mutants rejected, 0.0 s
    """

    def __repr__(self):
        from kda_lab.proof.report import line, summary

        return "\n".join([line(v).rstrip() for v in self] + [summary(self)])

    def _repr_html_(self):
        rows = "".join(
            f"<tr><td><code>{v.slug}</code></td><td>{badge(v.level)}</td><td>{escape(v.engine)}: "
            f"{escape(v.sizes)}</td><td>{mutants(v)}</td></tr>"
            for v in self
        )
        head = "<tr><th>equation</th><th>level</th><th>tried on</th><th>mistakes rejected</th></tr>"
        return f"<div class='kda-verdicts' tabindex='0'><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"


def badge(level):
    """A level as a small label.

    >>> badge("proved")
    "<span class='kda-level kda-level-proved'>proved</span>"
    """
    return f"<span class='kda-level kda-level-{level}'>{level}</span>"


def mutants(verdict):
    """The mutants of a verdict, folded behind their number.

    >>> from kda_lab.proof.registry import Verdict
    >>> mutants(Verdict("twice", "proved", "ring", "n = 1", 0.25, None, [("thrice", "ring")]))
    '<details><summary>1</summary>thrice</details>'
    """
    names = "<br>".join(escape(name) for name, _ in verdict.mutants)
    return f"<details><summary>{len(verdict.mutants)}</summary>{names}</details>"

"""The table in the terminal, row by row, with the running case while it runs."""

import textwrap

from kda_lab.conformance.capabilities import FEATURES, LIMITS

WIDTH = 118
WORDS = {"pass": "ok", "fail": "FAIL", "unsupported": "-", "refused": "REFUSED", "error": "ERROR"}


class Screen:
    """Writes the table to a stream as results arrive; quiet: only the progress, and only on a terminal."""

    def __init__(self, cases, out, quiet=False):
        self.cases, self.out, self.quiet = cases, out, quiet
        self.live = out.isatty()
        self.done = 0

    def write(self, text):
        """A line of the table."""
        if not self.quiet:
            print(text, file=self.out, flush=True)

    def head(self, loaded, seed):
        """Who is examined, and the column heads."""
        who, products = loaded["implementation"], loaded["products"]
        how = "measured" if products["measured"] else "declared"
        self.write(
            f"{who['name']} as {who['op']}, {who['dtype']} on {who['device']}, states {who['state_layout']}, "
            f"seed {seed}"
        )
        self.write(
            f"products: {products['precision']} ({how}); errors: relative, of the worst block, beside what is allowed\n"
        )
        self.write(f"{'':8}{'case':50}{'error':>9}{'allowed':>9}{'s':>7}  where")

    def start(self, name):
        """Show which case is running, if somebody watches."""
        if self.live:
            print(f"\r\033[K[{self.done + 1}/{self.cases}] {name}", end="", file=self.out, flush=True)

    def row(self, result):
        """The row of one result."""
        self.done += 1
        if self.live:
            print("\r\033[K", end="", file=self.out, flush=True)
        self.write(row(result))

    def end(self, report):
        """What it all means."""
        self.write("\n" + summary(report))


def row(result):
    """One row; the reason below it where the case did not simply pass.

    >>> from kda_lab.conformance.case import Result
    >>> print(row(Result("plain-inputs", "numbers", "pass", "", 3e-7, 8e-6, "o", None, 0.05)))
    ok      plain-inputs                                        3.0e-07  8.0e-06   0.05  o
    """
    error, budget = ("" if x is None else f"{x:.1e}" for x in (result.error, result.budget))
    where = result.what + (f" ({result.accuracy})" if result.accuracy else "")
    if result.outcome == "unsupported":
        return f"{WORDS[result.outcome]:8}{result.case:50}  {result.reason}"
    text = f"{WORDS[result.outcome]:8}{result.case:50}{error:>9}{budget:>9}{result.seconds:7.2f}  {where}".rstrip()
    if result.reason:
        text += "\n" + textwrap.fill(result.reason, WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 10)
    return text


def summary(report):
    """The lines below the table."""
    n = report["summary"]
    words = [f"{n[outcome]} {outcome}" for outcome in n if n[outcome]]
    lines = [f"{', '.join(words)} in {report['seconds']:.1f} s: {'conforms' if report['ok'] else 'does NOT conform'}"]
    classes = [f"{c['name']}: {c['accuracy']}" for c in report["cases"] if c["accuracy"]]
    if classes:
        lines.append(f"accuracy class: {', '.join(classes)}")
    for case in report["cases"]:
        if case["outcome"] in ("fail", "refused", "error"):
            text = f"{case['name']}: catches this kind of fault: {case['fault']} Smallest input: {case['input']}."
            text += f" Contract: {case['clause']}." + (
                f" Reported: {', '.join(case['reports'])}" if case["reports"] else ""
            )
            lines += [
                "",
                textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False),
            ]
    lines += ["", f"replay: {report['replay']}"]
    return "\n".join(lines)


def listing(cases):
    """All cases and what they need, and all words of --caps."""
    lines = []
    for kind in dict.fromkeys(c.kind for c in cases):
        lines += ["", kind]
        for c in cases:
            if c.kind == kind:
                lines.append(f"  {c.name}" + (f"  (needs {', '.join(c.needs)})" if c.needs else ""))
                lines.append(textwrap.fill(c.fault, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6))
    lines += ["", f"{len(cases)} cases", "", "words of --caps, joined by commas:"]
    lines += [f"  no-{name:18} unless it {text}" for name, text in FEATURES.items()]
    lines += [f"  {name + '=':21} {form}" for name, (_, _, form) in LIMITS.items()]
    return "\n".join(lines).lstrip("\n")

"""A document as text: a line for each row, and below what has to be known to read it."""

from kda_lab.bench import peers

HEAD = (
    f"{'workload':14}{'gates':8}{'implementation':16}{'graph ms':>9}{'spread':>8}"
    f"{'call ms':>9}{'floor ms':>9}{'x floor':>8}"
    f"{'error o':>9}{'S':>9}{'vs chunk':>10}"
)


def time_of(row):
    """Milliseconds of a row as {median, low, high}: of the graph, or else of a call; None where there is none.

    >>> time_of({"graph": None, "call": {"median": 1.0}})["median"]
    1.0
    """
    return row["graph"] or row["call"]


def line(row):
    """One row; of a result that is not right its errors, and no time."""
    time = time_of(row)
    graph, call = (f"{row[x]['median']:.4f}" if row[x] else "-" for x in ("graph", "call"))
    spread = f"{(time['high'] - time['low']) / time['median']:.1%}" if time and row["level"] == "measured" else "-"
    ratio = f"{time['median'] / row['floor']:.2f}" if time else "-"
    name = row["impl"] + (" *" if row["level"] == "reported" else "")
    errors = [size(row["error"] and row["error"][x]) for x in ("o", "state")]
    apart = size(row["agreement"] and worse(row["agreement"]["o"], row["agreement"]["state"]))
    words = row["note"] if row["level"] == "measured" else ""
    if row["outcome"] not in ("right", "reported"):
        words = f"{row['outcome'].upper()}: {words}; no time"
    text = (
        f"{row['shape']:14}{row['gates']:8}{name:16}{graph:>9}{spread:>8}{call:>9}{row['floor']:9.4f}{ratio:>8}"
        f"{errors[0]:>9}{errors[1]:>9}{apart:>10}"
    )
    return f"{text}  {words}".rstrip()


def size(error):
    """An error in eight columns.

    >>> size(0.0041), size("not finite"), size(None)
    ('4.1e-03', 'nan', '-')
    """
    return "-" if error is None else "nan" if isinstance(error, str) else f"{error:.1e}"


def worse(x, y):
    """The larger of two errors, "not finite" before all others."""
    return next((e for e in (x, y) if isinstance(e, str)), None) or max(x, y)


def summary(document):
    """How many rows ended how, in words.

    >>> summary({"rows": [{"outcome": "right"}, {"outcome": "wrong"}, {"outcome": "right"}]})
    '2 right, 1 wrong'
    """
    outcomes = [row["outcome"] for row in document["rows"]]
    return ", ".join(f"{outcomes.count(x)} {x}" for x in dict.fromkeys(outcomes)) or "no rows"


def head(document):
    """Lines above the rows: machine, versions, what is absent."""
    e = document["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in e["versions"].items())
    yield (
        f"{e['device']}, driver {e['driver']}, CUDA {e['cuda']}, copies at "
        f"{e['copy_rate'] / 1e12:.2f} TB/s, {e['date']}"
    )
    yield f"{versions}, sources {e['sources']}"
    yield from (f"{x['impl']}: {x['why']}" for x in document["absent"])
    yield HEAD


def foot(document):
    """Lines below the rows."""
    rows = document["rows"]
    yield summary(document) + ("" if document["finished"] else "; unfinished, rows are missing")
    against = dict.fromkeys(row["error"]["against"] for row in rows if row["error"])
    yield from (f"errors: {x}" for x in against)
    if any(row["agreement"] for row in rows):
        yield "vs chunk: the larger of o and S, all heads, against the readable kernel's bf16 result"
    yield (
        f"no time where an error exceeds {document['limit']:.0e}, or 16 tokens of a head are far "
        f"from the readable kernel's"
    )
    yield (
        f"times: medians of {document['repeats']}; spread: 10th to 90th percentile; x floor: of "
        f"the graph, or else of a call"
    )
    if quoted := dict.fromkeys(row["impl"] for row in rows if row["level"] == "reported"):
        versions = peers.data()["versions"]
        yield f"* {peers.source()}: {'; '.join(versions.get(x, x) for x in quoted)}"
    if clocks := document["environment"]["clocks_mhz"]:
        yield (
            f"clocks after the last timing: SM {clocks['sm']} of {clocks['sm_max']} MHz, memory {clocks['memory']} MHz"
        )


def table(document):
    """The whole document as text."""
    return "\n".join([*head(document), *map(line, document["rows"]), *foot(document)])

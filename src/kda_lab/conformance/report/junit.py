"""JUnit XML, as CI systems read it: a failure or an error for what does not conform, skipped for what is
unsupported.
"""

import xml.etree.ElementTree as tree

TAGS = {"fail": "failure", "refused": "failure", "error": "error", "unsupported": "skipped"}


def make(report):
    """The XML text of a JSON document.

    >>> none = {"fail": 0, "refused": 0, "error": 0, "unsupported": 0}
    >>> make({"implementation": {"name": "a:b"}, "summary": none, "seconds": 0, "cases": []})
    '<testsuites><testsuite name="kda conformance of a:b" tests="0" failures="0" errors="0" skipped="0" time="0"
    /></testsuites>'
    """
    n = report["summary"]
    suites = tree.Element("testsuites")
    attributes = {
        "name": f"kda conformance of {report['implementation']['name']}",
        "tests": len(report["cases"]),
        "failures": n["fail"] + n["refused"],
        "errors": n["error"],
        "skipped": n["unsupported"],
        "time": report["seconds"],
    }
    suite = tree.SubElement(suites, "testsuite", {name: str(x) for name, x in attributes.items()})
    for case in report["cases"]:
        item = tree.SubElement(
            suite, "testcase", classname=f"kda.{case['kind']}", name=case["name"], time=str(case["seconds"])
        )
        if case["outcome"] in TAGS:
            mark = tree.SubElement(item, TAGS[case["outcome"]], message=printable(case["reason"]))
            mark.text = printable(
                f"{case['fault']} Smallest input: {case['input']}. Replay: {report['replay']} --only {case['name']}"
            )
    return tree.tostring(suites, encoding="unicode")


def printable(text):
    """Text without the control characters that XML does not have.

    >>> printable("a\\x00b")
    'a b'
    """
    return "".join(c if c.isprintable() else " " for c in text)

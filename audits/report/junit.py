"""The report's document → JUnit XML, for CI: a test case a finding, a failure where it is an error or a warning.

Suppressed findings, and what could not be checked, are skipped cases; what is explained or noted passes.
"""

from __future__ import annotations

from xml.etree import ElementTree

from audits.report.document import Json

FAILURES = ("error", "warning")


def as_junit(document: Json) -> str:
    """One test suite."""
    suite = ElementTree.Element("testsuite", name=f"marin-repro audit of {document['record']}")
    failures = skipped = 0
    for finding in document["findings"]:
        case = _case(suite, finding["quantity"], finding["id"])
        if finding["suppressed"] is not None:
            skipped += 1
            reason = f"suppressed until {finding['suppressed']['expires']}: {finding['suppressed']['reason']}"
            ElementTree.SubElement(case, "skipped", message=_text(reason))
        elif finding["severity"] in FAILURES:
            failures += 1
            failure = ElementTree.SubElement(case, "failure", message=_text(finding["title"]), type=finding["severity"])
            failure.text = _text(f"{finding['explanation']} {finding['advice']}")
        else:
            out = ElementTree.SubElement(case, "system-out")
            out.text = _text(f"{finding['severity']}: {finding['title']}. {finding['explanation']}")
    for one in document["unverifiable"]:
        skipped += 1
        case = _case(suite, one["quantity"] or "record", f"{one['subject']} cannot be checked")
        ElementTree.SubElement(case, "skipped", message=_text(one["reason"]))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("skipped", str(skipped))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, quantity: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_text(quantity), name=_text(name))


def _text(text: str) -> str:
    """One line that XML can hold."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)

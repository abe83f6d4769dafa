"""pytest's JUnit report as JSON. Arguments: report, root of the tree, result file."""

import json
import os
import re
import sys
import xml.etree.ElementTree as ET

KEPT = 6000  # characters of a failure's text


def test_id(case, file):
    """What pytest takes on its command line: the file, the classes, the name."""
    classes = case.get("classname", "").split(".")
    stem = os.path.splitext(file)[0].split("/")
    # the class name is the dotted module followed by the classes
    for at in range(len(classes), -1, -1):
        if classes[:at] == stem[-at:] or (at and classes[:at] == stem):
            inner = classes[at:]
            break
    else:
        inner = []
    return "::".join([file] + [name for name in inner if name] + [case.get("name", "")])


def outcome_of(case):
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            names = {"failure": "failed", "error": "error"}
            if kind == "skipped":
                return ("xfailed" if "xfail" in found.get("type", "") else "skipped"), found
            return names[kind], found
    return "passed", None


RAISED = re.compile(
    r"^E\s+(?:[\w]+\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Warning|Failed|NotFound\w*|Timeout\w*)"
    r"|Failed|Exception): ?(.*)$"
)
BARE = re.compile(r"^E\s+(?:[\w]+\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Warning))\s*$")
LAST = re.compile(r"^([^\s:][^:\n]*):(\d+): ([A-Za-z_]\w*)\s*$")
LINE = re.compile(r"^([^\s:][^:\n]*\.(?:py|pyx)):(\d+): ")


def reason(found):
    """Exception type and message from the failure's text and its message attribute."""
    text = found.text or ""
    said = found.get("message", "")
    for line in reversed(text.splitlines()):
        match = RAISED.match(line) or BARE.match(line)
        if match:
            return match.group(1), (match.group(2) if match.re is RAISED else "")
    head = re.match(r"(?:[\w]+\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Warning|Failed)|Failed): ?([^\n]*)", said)
    if head:
        return head.group(1), head.group(2)
    last = [LAST.match(line) for line in text.splitlines()]
    kinds = [match.group(3) for match in last if match]
    first = said.splitlines()[0] if said else ""
    if first == "collection failure":
        first = next((line.strip() for line in text.splitlines() if line.strip()), first)
    if kinds:
        return kinds[-1], first
    return ("AssertionError" if first.startswith("assert ") else ""), first


def deepest(text, root):
    """The last FILE:LINE of the failure that is inside the tree."""
    found = ("", None)
    for line in text.splitlines():
        match = LINE.match(line)
        if match:
            path = match.group(1)
            full = path if os.path.isabs(path) else os.path.join(root, path)
            if os.path.isfile(full) and os.path.realpath(full).startswith(os.path.realpath(root) + os.sep):
                found = (os.path.relpath(full, root), int(match.group(2)))
    return found


def first_in(text, root, file):
    """The first line number inside the test's own file."""
    for line in text.splitlines():
        match = LINE.match(line)
        if match and os.path.normpath(match.group(1)) == file:
            return int(match.group(2))
    return None


def main():
    report, root, target = sys.argv[1:4]
    cases = []
    for case in ET.parse(report).getroot().iter("testcase"):
        outcome, found = outcome_of(case)
        file = case.get("file") or ""
        name = case.get("name", "")
        if not file and outcome == "error":
            # an error of collection names the module only
            dotted = (case.get("classname") or name).replace(".", "/")
            file = next((path for path in (dotted + ".py", name) if os.path.isfile(os.path.join(root, path))), "")
        file = os.path.relpath(os.path.join(root, file), root) if file else ""
        text = (found.text or "") if found is not None else ""
        collected = "::" in test_id(case, file) and not (outcome == "error" and not case.get("classname"))
        kind, message = reason(found) if found is not None and outcome in ("failed", "error") else ("", "")
        place, line = deepest(text, root)
        cases.append(
            {
                "id": test_id(case, file) if collected and file else (file or name),
                "file": file,
                "outcome": outcome,
                "seconds": float(case.get("time") or 0),
                "type": kind,
                "message": message[:1000],
                "text": text[-KEPT:],
                "place": f"{place}:{line}" if place else "",
                "line": first_in(text, root, file),
            }
        )
    with open(target, "w") as out:
        json.dump(cases, out)


main()

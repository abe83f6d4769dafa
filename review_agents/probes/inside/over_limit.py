"""Runs a benchmark a few times and says whether even its best is over a limit. For reproductions.

Arguments: what (wall, memory, output or a file of figures), figure, limit, command.
"""

import json
import re
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

RUNS = 3
UNITS = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "s": 1.0}


def main():
    what, figure, limit, command = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    values = []
    for _ in range(RUNS):
        start = time.perf_counter()
        done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        took = time.perf_counter() - start
        said = done.stdout.decode("utf-8", "replace")
        if done.returncode:
            print(said[-2000:])
            sys.exit(f"the benchmark ended with {done.returncode}")
        if what == "wall":
            values.append(took)
        elif what == "memory":
            values.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
        elif what == "output":
            values.append(from_output(said, figure))
        else:
            with open(what) as file:
                values.append(from_file(file.read(), figure))
    best = min(values)
    print(f"best of {RUNS}: {best:.6g}, limit {limit:.6g}")
    print("OVER THE LIMIT" if best > limit else "within the limit")


def from_output(said, figure):
    for line in said.splitlines():
        rest = line.strip()[len(figure) :] if line.strip().startswith(figure) else ""
        match = re.match(r"\s*[:=\s]\s*([\d.]+(?:[eE][+-]?\d+)?)\s*([nuµμm]?)s(?:ec)?\b", rest)
        if match:
            return float(match.group(1)) * UNITS[match.group(2) or "s"]
    sys.exit(f"the benchmark prints no {figure}")


def from_file(text, figure):
    if text.lstrip().startswith("<"):
        for case in ET.fromstring(text).iter("testcase"):
            if f"{case.get('classname')}::{case.get('name')}" == figure:
                return float(case.get("time"))
        sys.exit(f"there was no test {figure}")
    content = json.loads(text)
    if "seconds" in content:
        return content["seconds"][figure]
    for one in content["benchmarks"]:
        if figure in (one.get("fullname"), one.get("name")):
            return one["stats"]["median"]
        values = sorted(value for run in one.get("runs", []) for value in run.get("values", []))
        if values and figure in ((one.get("metadata") or content["metadata"]).get("name"), "benchmark"):
            return values[len(values) // 2]
    sys.exit(f"the benchmark gave no {figure}")


main()

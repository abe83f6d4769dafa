"""Load each entry point but the scripts, each in a process of its own. Arguments: distribution name, result file."""

import json
import os
import signal
import sys
from importlib import metadata

LIMIT_S = 20


def load(point):
    """Type, message and missing module of what loading raised, all empty when it worked."""
    try:
        point.load()
    except ModuleNotFoundError as problem:
        return [type(problem).__name__, str(problem), problem.name or ""]
    except BaseException as problem:
        return [type(problem).__name__, str(problem), ""]
    return ["", "", ""]


def in_a_child(point):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.alarm(LIMIT_S)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.write(writer, json.dumps(load(point)).encode()[:60000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        text = said.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else ["", "", ""]


def main():
    name, target = sys.argv[1:3]
    found = []
    for point in metadata.distribution(name).entry_points:
        if point.group in ("console_scripts", "gui_scripts"):
            continue
        kind, message, missing = in_a_child(point)
        error = (kind + ": " + message) if kind else ""
        found.append(
            {
                "group": point.group,
                "name": point.name,
                "value": point.value,
                "type": kind,
                "error": error,
                "missing": missing,
            }
        )
    with open(target, "w") as out:
        json.dump(found, out)


main()

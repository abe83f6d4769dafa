"""The hottest functions of a cProfile file.

Arguments: profile, JSON list of the package's folders and of its modules that are single files, result file.
"""

import json
import os
import pstats
import sys

KEPT = 25


def main():
    profile, folders, target = sys.argv[1:4]
    stats = pstats.Stats(profile)
    places = {os.path.realpath(place) for place in json.loads(folders)}
    own_folders = tuple(place + os.sep for place in places)
    total = sum(entry[2] for entry in stats.stats.values()) or 1.0
    own = []
    for (file, line, name), (_, calls, own_s, whole_s, _) in stats.stats.items():
        path = os.path.realpath(file)
        if path in places or path.startswith(own_folders):
            own.append(
                {"file": file, "line": line, "function": name, "calls": calls, "own_s": own_s, "whole_s": whole_s}
            )
    for entry in own:
        entry["share"] = round(entry["own_s"] / total, 4)
    own.sort(key=lambda entry: -entry["own_s"])
    with open(target, "w") as out:
        json.dump({"seconds": total, "own_seconds": sum(entry["own_s"] for entry in own), "functions": own[:KEPT]}, out)


main()

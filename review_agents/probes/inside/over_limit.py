"""Runs a benchmark a few times and says whether even its best is over a limit. For reproductions.

Arguments: what (wall, memory, output or a file of figures), figure, limit, command. `probes/figures.py`, which read the
figures when the limit was found, lies beside it as `lamplighter_figures.py`.
"""

import resource
import subprocess
import sys
import time

import lamplighter_figures

RUNS = 3


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
        else:
            values.append(own_figure(what, figure, said))
    best = min(values)
    print(f"best of {RUNS}: {best:.6g}, limit {limit:.6g}")
    print("OVER THE LIMIT" if best > limit else "within the limit")


def own_figure(what, figure, said):
    if what == "output":
        figures = lamplighter_figures.from_output(said)
    else:
        with open(what, encoding="utf-8", errors="replace") as file:
            figures = lamplighter_figures.from_file(file.read())
    if figure not in figures:
        sys.exit(f"the benchmark gave no figure {figure!r}")
    return figures[figure]


main()

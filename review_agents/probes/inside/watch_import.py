"""What importing a module does beside binding a name. Arguments: module, result file.

The module is imported in a child with its output taken away, while an audit hook notes files written, programs started
and connections tried. When the process grew much meanwhile, another child imports it once more under `tracemalloc`,
which is slow, and says which statements of the package the memory belongs to.
"""

import json
import os
import resource
import signal
import sys
import tempfile

LIMIT_S = 60
WEIGH_LIMIT_S = 240
WORTH_WEIGHING = 15 * 1024 * 1024  # growth of the process, in bytes


def watched(module):
    seen = {"written": [], "programs": [], "network": [], "warnings": []}

    def note(event, arguments):
        if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
            path = str(arguments[0])
            if not path.startswith(("/dev/", "/proc/")) and "__pycache__" not in path:
                seen["written"].append(path)
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            seen["programs"].append(str(arguments[0])[:200])
        elif event in ("socket.connect", "socket.getaddrinfo"):
            seen["network"].append(repr(arguments[-1] if event == "socket.connect" else arguments[0])[:200])

    import threading
    import warnings

    before = set(sys.modules)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sys.addaudithook(note)
        error = ""
        try:
            __import__(module)
        except BaseException as problem:
            error = type(problem).__name__ + ": " + str(problem)
    seen["warnings"] = [
        {"category": one.category.__name__, "message": str(one.message)[:300], "file": one.filename, "line": one.lineno}
        for one in caught
    ][:50]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen.update(
        {
            "error": error,
            "modules": len(set(sys.modules) - before),
            "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
            "peak_bytes": peak * 1024,
            "grown_bytes": (peak - start) * 1024,
        }
    )
    return seen


def weighed(module):
    """Bytes that the package's own code allocated and kept, in all and by statement."""
    import tracemalloc

    tracemalloc.start(8)
    __import__(module)
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    places = [getattr(sys.modules.get(module), "__file__", None), *getattr(sys.modules.get(module), "__path__", [])]
    folders = [os.path.dirname(place) if place.endswith("__init__.py") else place for place in places if place]
    own, lines = 0, {}
    for stat in snapshot.statistics("traceback"):
        frame = responsible(stat.traceback, folders)
        if frame is not None:
            own += stat.size
            lines[frame] = lines.get(frame, 0) + stat.size
    largest = sorted(lines.items(), key=lambda one: -one[1])[:5]
    return {
        "own_bytes": own,
        "largest": [{"file": file, "line": line, "bytes": size} for (file, line), size in largest],
    }


def responsible(trace, folders):
    """The statement at the top level of one of the package's modules that led to the allocation; None for others' work.

    What the standard library allocates for the package is the package's; what is allocated while another module is
    loaded, or by another distribution, is not.
    """
    frames = [(frame.filename, frame.lineno) for frame in trace]
    at = max((at for at, (file, _) in enumerate(frames) if is_below(file, folders)), default=None)
    if at is None or any("importlib" in file or "site-packages" in file for file, _ in frames[at + 1 :]):
        return None
    top = [frame for frame in frames[: at + 1] if is_below(frame[0], folders) and frame[1] in top_level(frame[0])]
    return top[-1] if top else frames[at]


def is_below(file, folders):
    return any(file == folder or file.startswith(folder + os.sep) for folder in folders)


LINES = {}  # type: dict[str, set[int]]


def top_level(file):
    """Line numbers of a module outside of its functions."""
    if file not in LINES:
        import ast

        try:
            with open(file, "rb") as source:
                tree = ast.parse(source.read())
        except (OSError, SyntaxError, ValueError):
            tree = ast.Module([], [])
        inside = set()
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                inside.update(range(node.lineno, node.end_lineno + 1))
        last = max([node.end_lineno for node in tree.body] or [0])
        LINES[file] = set(range(1, last + 1)) - inside
    return LINES[file]


def in_a_child(work, module, limit_s):
    """What `work(module)` returned, or None when it did not end; and what it printed."""
    output = tempfile.TemporaryFile()  # noqa: SIM115
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.alarm(limit_s)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        said = json.dumps(work(module)).encode()
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(said)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    output.seek(0)
    return (json.loads(said) if said else None), output.read(4000).decode("utf-8", "replace")


def main():
    module, target = sys.argv[1:3]
    seen, printed = in_a_child(watched, module, LIMIT_S)
    seen = seen or {"error": "the interpreter ended during the import"}
    seen["printed"] = printed
    seen.update({"own_bytes": 0, "largest": []})
    if not seen["error"] and seen["grown_bytes"] > WORTH_WEIGHING:
        seen.update(in_a_child(weighed, module, WEIGH_LIMIT_S)[0] or {})
    with open(target, "w") as out:
        json.dump(seen, out)


main()

"""What importing a module does beside binding a name. Arguments: module, result file.

The module is imported in a child with its output taken away, while an audit hook notes files written, programs started
and connections tried. Memory is what Python allocated meanwhile, by the files that allocated it.
"""

import json
import os
import resource
import sys
import tempfile

LIMIT_S = 60


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
    import tracemalloc
    import warnings

    before = set(sys.modules)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracemalloc.start()
        sys.addaudithook(note)
        error = ""
        try:
            __import__(module)
        except BaseException as problem:
            error = type(problem).__name__ + ": " + str(problem)
        snapshot = tracemalloc.take_snapshot()
        tracemalloc.stop()
    top = module.split(".")[0]
    seen["warnings"] = [
        {"category": one.category.__name__, "message": str(one.message)[:300], "file": one.filename, "line": one.lineno}
        for one in caught
    ][:50]
    places = [getattr(sys.modules.get(top), "__file__", None)] + list(getattr(sys.modules.get(top), "__path__", []))
    folders = [os.path.dirname(place) if place and place.endswith(".py") else place for place in places if place]
    own, largest = 0, []
    for stat in snapshot.statistics("filename"):
        file = stat.traceback[0].filename
        if any(file.startswith(folder + os.sep) for folder in folders if not folder.endswith("site-packages")):
            own += stat.size
            largest.append({"file": file, "bytes": stat.size})
    seen.update(
        {
            "error": error,
            "modules": len(set(sys.modules) - before),
            "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
            "own_bytes": own,
            "largest": sorted(largest, key=lambda one: -one["bytes"])[:5],
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )
    return seen


def main():
    module, target = sys.argv[1:3]
    output = tempfile.TemporaryFile()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        import signal

        signal.alarm(LIMIT_S)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        said = json.dumps(watched(module)).encode()
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
    seen = json.loads(said) if said else {"error": "the interpreter ended during the import"}
    seen["printed"] = output.read(4000).decode("utf-8", "replace")
    with open(target, "w") as out:
        json.dump(seen, out)


main()

"""Times the `time_...` benchmarks of a folder the way asv does, and writes their seconds.

Arguments: folder, result file. Per benchmark: setup, as many calls as fill a value, three values, the median of them.
"""

import importlib
import inspect
import itertools
import json
import os
import statistics
import sys
import time

VALUE_S, VALUES = 0.05, 3
MOST, MOST_COMBINATIONS, MOST_S = 24, 3, 8.0


def main():
    folder, target = sys.argv[1:3]
    folder = os.path.abspath(folder)
    sys.path.insert(0, os.path.dirname(folder))
    found, problems = {}, {}
    end = time.monotonic() + MOST_S
    package = os.path.basename(folder)
    for name in modules(folder):
        try:
            module = importlib.import_module(f"{package}.{name}" if name else package)
        except Exception as problem:
            problems[name] = repr(problem)[:300]
            continue
        for label, make, setups in benchmarks(module):
            for parameters in combinations(make()):
                if len(found) >= MOST or time.monotonic() > end:
                    break
                shown = f"{name}.{label}" + (f"({', '.join(map(repr, parameters))})" if parameters else "")
                try:
                    found[shown] = timed(make(), setups, parameters)
                except NotImplementedError:  # asv's way to skip
                    continue
                except Exception as problem:
                    problems[shown] = repr(problem)[:300]
    with open(target, "w") as out:
        json.dump({"seconds": found, "problems": problems}, out)
    if not found:
        print(f"no benchmark could be timed: {problems}")
        sys.exit(1)


def modules(folder):
    names = [""]
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for file in sorted(files):
            if file.endswith(".py") and file != "__init__.py":
                names.append(os.path.relpath(os.path.join(place, file), folder)[:-3].replace(os.sep, "."))
    return names


def benchmarks(module):
    """Label, a way to make the callable, and the setups that go before it."""
    module_setup = getattr(module, "setup", None)
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value) and name.startswith("time_"):
            yield name, lambda value=value: value, [module_setup, getattr(value, "setup", None)]
        elif inspect.isclass(value):
            for method in sorted(vars(value)):
                if method.startswith("time_") and callable(getattr(value, method)):
                    yield (
                        f"{name}.{method}",
                        lambda value=value, method=method: getattr(value(), method),
                        [module_setup],
                    )


def combinations(call):
    owner = getattr(call, "__self__", call)
    params = getattr(call, "params", None) or getattr(owner, "params", None) or []
    if params and not isinstance(params[0], (list, tuple)):
        params = [params]
    return list(itertools.islice(itertools.product(*params), MOST_COMBINATIONS)) if params else [()]


def timed(call, setups, parameters):
    owner = getattr(call, "__self__", None)
    own = [getattr(owner, "setup", None)] if owner is not None else []
    cache = getattr(owner, "setup_cache", None)
    arguments = (*((cache(),) if cache else ()), *parameters)
    for setup in [*setups, *own]:
        if setup is not None:
            setup(*arguments[: accepted(setup)])
    number = 1
    while True:
        took = spent(call, arguments, number)
        if took >= VALUE_S or number >= 1 << 20:
            break
        number = max(number + 1, min(number * 10, int(number * 1.2 * VALUE_S / max(took, 1e-9))))
    value = statistics.median(spent(call, arguments, number) / number for _ in range(VALUES))
    teardown = getattr(owner, "teardown", None) if owner is not None else getattr(call, "teardown", None)
    if teardown is not None:
        teardown(*arguments[: accepted(teardown)])
    return value


def accepted(function):
    """How many positional arguments it takes."""
    kinds = [one.kind for one in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 100
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def spent(call, arguments, number):
    start = time.perf_counter()
    for _ in range(number):
        call(*arguments)
    return time.perf_counter() - start


main()

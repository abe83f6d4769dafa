"""Which top-level statement of a module takes longest. Arguments: module, result file.

The module is imported first, then its statements run once more, one by one, in a namespace of their own. Imports do not
count: what they cost belongs to the modules that they load.
"""

import ast
import importlib
import importlib.util
import json
import sys
import time


def main():
    name, target = sys.argv[1:3]
    importlib.import_module(name)
    spec = importlib.util.find_spec(name)
    source = spec.loader.get_source(name)
    space = {
        "__name__": name,
        "__file__": spec.origin,
        "__package__": spec.parent,
        "__spec__": spec,
        "__builtins__": __builtins__,
    }
    if spec.submodule_search_locations is not None:
        space["__path__"] = list(spec.submodule_search_locations)
    worst = {"line": None, "seconds": 0.0}
    for node in ast.parse(source).body:
        code = compile(ast.Module([node], []), spec.origin, "exec")
        start = time.perf_counter()
        exec(code, space)
        seconds = time.perf_counter() - start
        if seconds > worst["seconds"] and not isinstance(node, (ast.Import, ast.ImportFrom)):
            worst = {"line": node.lineno, "seconds": seconds}
    with open(target, "w") as out:
        json.dump(worst, out)


main()

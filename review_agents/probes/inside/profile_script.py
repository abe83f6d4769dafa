"""Run a script under cProfile, as `python SCRIPT ARGUMENTS` would run it.

Arguments: profile, script, its arguments. cProfile itself would give the script's `__main__` to nobody, so that
`unittest.main()` finds no tests.
"""

import cProfile
import os
import runpy
import sys


def main():
    target, script = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    profile = cProfile.Profile()
    try:
        profile.runcall(runpy.run_path, script, run_name="__main__")
    finally:
        profile.dump_stats(target)


main()

"""Names of the files in the one wheel of a folder. Arguments: folder, result file."""

import glob
import json
import sys
import zipfile


def main():
    folder, target = sys.argv[1:3]
    names = []
    for path in sorted(glob.glob(folder + "/*.whl"))[:1]:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
    with open(target, "w") as out:
        json.dump(names, out)


main()

#!/usr/bin/env bash
# Gathers all that a machine without network needs for the suites, except torch: docs/driver-validation.md has the rest.
#
#   ci/offline.sh FOLDER [OPTION...]
#
# FOLDER gets the wheels of the harness with its suites, of its dependencies, and of pip, for this version of Python and
# this kind of machine. Options go to `pip download`; for another machine:
#
#   ci/offline.sh FOLDER --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64
#
# PYTHON is the Python that has pip. Default: python3
set -euo pipefail
if (($# == 0)); then
    echo "ci/offline.sh: expected the folder for the wheels" >&2
    exit 2
fi
folder=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
mkdir -p "$folder"

"$python" - >"$temp/needed.txt" <<'END'
import tomllib

with open("pyproject.toml", "rb") as file:
    for needed in tomllib.load(file)["project"]["dependencies"]:
        if not needed.startswith("torch"):
            print(needed)
END
grep -v '^torch==' constraints.txt >"$temp/constraints.txt"
"$python" -m pip download -q --only-binary=:all: "$@" --constraint "$temp/constraints.txt" --dest "$folder" \
    --requirement "$temp/needed.txt" pip

# From a copy: a build leaves folders beside its sources. Git tells the build the commit.
mkdir "$temp/source"
cp -r harness suites configs pyproject.toml setup.py MANIFEST.in README.md LICENSE "$temp/source"
if git=$(git rev-parse --absolute-git-dir 2>/dev/null); then export GIT_DIR=$git GIT_WORK_TREE=$PWD; fi
"$python" -m pip wheel -q --no-deps --wheel-dir "$folder" "$temp/source"

#!/bin/sh
# Runs the conformance suites on this machine, and packs the result. No network is needed.
#     ./run.sh --profile driver-validation
# Every argument goes to pytest. PYTHON=/path/to/python names the Python that has torch; by default python3.
exec "${PYTHON:-python3}" "$(dirname "$0")/start.py" "$@"

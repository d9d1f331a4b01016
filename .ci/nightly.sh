#!/usr/bin/env bash
# The checks that take too long for each change.
#
#   .ci/nightly.sh [STEP...]
#
# Steps, in this order; without an argument, all of them:
#   suites    every case on this machine, in the order of the night
#   soft      the profile `soft` and the suites of further levels of conformance, on the software device, in the order
#             of the night; the levels `autograd`, `collectives`, `compile` and `profiler` must not fail
#   outside   all suites on the device of tests/outside/plain_device, which has as little as a package can register. Its
#             waivers are what it is known to fail
#   simcuda   every case on the simulated CUDA, with a CUDA build of torch, in the order of the night; then each in its
#             own process, with the same verdicts; three suites with work in reverse; the tests of the simulation, with
#             real programs; `harness ready` with each fault
#   seeds     each case that draws random numbers, on this machine with ten new seeds
#   options   every case once per option and per surrounding that must not change a verdict: leak checks, isolation,
#             workers, locale, user, home, no network and others, and with python3.14 if there is one. No case may be
#             red
#   chaos     the tests in which processes are killed, stopped and starved, with ten seeds
#   breaks    breaks of torch, each of which a case must detect (`python -m tests.breaks run`)
#   mutants   a tenth of the changes of torch that `python -m tests.breaks mutants` makes, chosen by the seed
#   tests     all tests, including long ones, with cold processes, as a user starts them, and five random orders
#
# Variables:
#   NIGHTLY_SEED      seed of the night, a number. Default: the date, such as 20261122
#   NIGHTLY_SEEDS     most seeds of each case in the step `seeds`, as they fit in 20 s per file. Default: 200
#   NIGHTLY_RESULTS   where the run directories are created. Default: nightly-results
#   NIGHTLY_CACHE     where environments are kept. Default: ~/.cache/gpu-conformance-harness/environments
#   NIGHTLY_WORKERS   number of workers, or auto. Default: auto
#
# Exit status: 0 if every step passed, 1 if one failed, 2 for an unknown step or an invalid seed.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

steps=(suites soft outside simcuda seeds options chaos breaks mutants tests)
seed=${NIGHTLY_SEED:-$(date -u +%Y%m%d)}
results=${NIGHTLY_RESULTS:-nightly-results}
cache=${NIGHTLY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-conformance-harness/environments}
workers=${NIGHTLY_WORKERS:-auto}
unset PYTEST_ADDOPTS

# Prints the folder of the virtual environment with this requirement of torch, of the Python in the variable `python` if
# it is set. It is created once per content of the
# files that determine it. Older ones with the same name are removed.
environment() {
    local name=$1 torch=$2 python=${python:-python3} key folder
    key=$(cat constraints.txt pyproject.toml <("$python" --version) <(echo "$torch") | sha256sum | cut -c1-16)
    folder=$cache/$name-$key
    if [[ ! -e $folder/complete ]]; then
        rm -rf "$cache/$name-"*
        mkdir -p "$cache"
        "$python" -m venv "$folder"
        "$folder/bin/pip" install -q -c constraints.txt "$torch" -e '.[test]' >&2
        touch "$folder/complete"
    fi
    # An editable install names one checkout. The next night may use another.
    "$folder/bin/pip" install -q --no-deps -e . >&2
    echo "$folder"
}

pinned=$(sed -n 's/^torch==//p' constraints.txt)

suites() {
    local made
    made=$(environment plain "torch==$pinned")
    "$made/bin/pytest" suites/ -n "$workers" --profile nightly --seed "$seed" --results-dir "$results/suites"
}

soft() {
    local made status=0
    made=$(environment plain "torch==$pinned")
    "$made/bin/pytest" suites/ -n "$workers" --profile soft --shuffle --seed "$seed" --results-dir "$results/soft" ||
        status=1
    # These levels have suites that are not in the profile.
    "$made/bin/pytest" suites/{autograd,collectives,compiled_autograd,memory_profiler,profiler} -n "$workers" \
        --device soft --shuffle --seed "$seed" --results-dir "$results/soft-levels" || status=1
    "$made/bin/harness" conformance "$results/soft-levels" --level autograd --level collectives --level compile \
        --level profiler || status=1
    return "$status"
}

outside() {
    local made site status=0
    made=$(environment plain "torch==$pinned")
    site=$(mktemp -d)
    "$made/bin/python" -m tests.outside.plain "$site"
    # The waivers are strict: what is red is decided there, and what passes again must leave the file.
    PYTHONPATH=$site "$made/bin/pytest" suites/ -n "$workers" --device plain --waivers tests/outside/plain.yaml \
        --shuffle --seed "$seed" --results-dir "$results/outside" || status=1
    rm -r "$site"
    return "$status"
}

simcuda() {
    local made status=0
    # `===` takes the build of the package index, which is for CUDA, even where a build for the CPU is preferred.
    made=$(environment cuda "torch===$pinned")
    "$made/bin/pytest" suites/ -n "$workers" --device simcuda --shuffle --seed "$seed" \
        --results-dir "$results/simcuda" || status=1
    "$made/bin/pytest" suites/ -n "$workers" --device simcuda --isolation case --shuffle --seed "$seed" \
        --results-dir "$results/simcuda-alone" || status=1
    # A case that needs something that an earlier one has started, such as the allocator, may skip itself in its own
    # process. That is not red in the run.
    "$made/bin/harness" diff --strict "$results/simcuda" "$results/simcuda-alone" || status=1
    # Work begins as late as CUDA permits, and in reverse: no case may rely on more.
    SIMCUDA_ORDER=reversed "$made/bin/pytest" suites/{graphs,streams,transfers} -n "$workers" --device simcuda --shuffle \
        --seed "$seed" --results-dir "$results/simcuda-reversed" || status=1
    # The tests that need a CUDA build, with real programs under `harness sim run`.
    "$made/bin/pytest" tests/sim/simcuda tests/acceptance/test_simcuda.py --run-nightly -n "$workers" || status=1
    # `harness ready`: each fault, and checks without one, half of them on a busy machine.
    "$made/bin/pytest" tests/ready --run-nightly -n "$workers" || status=1
    "$made/bin/python" benchmarks/ready.py alarms --runs 40 || status=1
    return "$status"
}

seeds() {
    local made
    made=$(environment plain "torch==$pinned")
    "$made/bin/python" -m tests.ci.new_seeds suites/ --seeds "${NIGHTLY_SEEDS:-200}" --seconds 20 --seed "$seed" \
        --workers "$workers" --results "$results/seeds"
}

options() {
    local made newer=()
    made=$(environment plain "torch==$pinned")
    if command -v python3.14 >/dev/null; then
        newer=(--python "$(python=python3.14 environment newer "torch==$pinned")/bin/python")
    fi
    "$made/bin/python" -m tests.ci.option_matrix suites/ --seed "$seed" --workers "$workers" \
        --results "$results/options" "${newer[@]}"
}

chaos() {
    local made
    made=$(environment plain "torch==$pinned")
    CHAOS_SEEDS=$(seq -s, "$seed" $((seed + 9))) "$made/bin/pytest" tests/chaos --run-nightly -n "$workers" --dist worksteal
}

breaks() {
    local made jobs=$workers
    made=$(environment plain "torch==$pinned")
    if [[ $jobs == auto ]]; then jobs=$(nproc); fi
    # The data differ each night, so a break that only shows with some data is missed occasionally.
    "$made/bin/python" -m tests.breaks run --device cpu --device soft --jobs "$jobs" --seed "$seed" \
        --results-dir "$results/breaks"
}

mutants() {
    local made
    made=$(environment plain "torch==$pinned")
    # The suites with cases for torch's Python code. The others reach little of it, and take long to record.
    "$made/bin/python" -m tests.breaks mutants suites/{amp,autograd,memory_profiler,numerics,optimizers,profiler} \
        suites/{rng,serialization} --share 0.1 --seed "$seed" --time 7200 \
        --pytest=-n"$workers" --results-dir "$results/mutants"
}

tests() {
    local made
    made=$(environment plain "torch==$pinned")
    TESTS_COLD=1 ACCEPTANCE_SEEDS=5 "$made/bin/pytest" tests/ --run-nightly -n "$workers" --dist worksteal
}

if [[ ! $seed =~ ^[0-9]+$ ]]; then
    echo ".ci/nightly.sh: NIGHTLY_SEED='$seed': expected a number, such as 20261122" >&2
    exit 2
fi
for step in "$@"; do
    if [[ " ${steps[*]} " != *" $step "* ]]; then
        echo ".ci/nightly.sh: unknown step '$step': expected one of ${steps[*]}" >&2
        exit 2
    fi
done
if (($#)); then steps=("$@"); fi

failed=()
for step in "${steps[@]}"; do
    echo "== $step (seed $seed)"
    # Not as `"$step" || …`: within a condition, `set -e` has no effect.
    set +e
    (set -e; "$step")
    status=$?
    set -e
    if ((status)); then failed+=("$step: exit status $status"); fi
done
if ((${#failed[@]})); then
    printf '.ci/nightly.sh: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi

#!/usr/bin/env bash
# The steps of the hardware matrix. GitHub, GitLab, Slurm and Kubernetes all run these.
#
#   ci/matrix.sh plan FORMAT   print the jobs, as `harness matrix plan --format FORMAT` does
#   ci/matrix.sh job           run one job of the plan: the suites, on this machine
#   ci/matrix.sh summary       after `job`: write its job summary and annotations, for GitHub
#   ci/matrix.sh page          after all jobs: merge the parts of runs, write the page, name the jobs without results
#
# Variables of plan and page:
#   MATRIX_FILE             the plan. Default: configs/matrix.yaml
#   MATRIX_WHEN             nightly, weekly or on-demand; several separated by spaces. Default: nightly
#   MATRIX_MACHINES         only these machines, separated by spaces. Default: all
#   MATRIX_BY               of page: github, gitlab or slurm, the system that ran the jobs. Default: all jobs
#   MATRIX_HISTORY          of page: a history that records the runs; its pages are written, too. Default: none
#   MATRIX_NOTIFY           of page, with MATRIX_HISTORY: the rules of harness notify. Default: no notifications
# Variables of job and summary, one value of the plan each:
#   MATRIX_RUN MATRIX_HARDWARE MATRIX_DEVICE MATRIX_DRIVER MATRIX_TORCH MATRIX_BUILD MATRIX_PYTHON_VERSION
#   MATRIX_PROFILE MATRIX_SHARD
# Variables of all:
#   MATRIX_RESULTS          where jobs leave their run directories, RUN/PART. Default: matrix-results
#   MATRIX_PAGE             where the page is written. Default: matrix-page
#   MATRIX_PYTHON           a Python with the harness and torch, as in a container. Default: environments are created
#   MATRIX_CACHE            where environments are kept. Old ones may be removed while no job runs.
#                           Default: ~/.cache/gpu-conformance-harness/environments
#   MATRIX_TORCH_INDEX      package index with a folder per build of torch. Default: PyTorch's
#   MATRIX_WORKERS          number of workers of a job, or auto. Default: auto
#   MATRIX_JUNIT            flavour of junit.xml: default, jenkins or gitlab. Default: default
#
# Exit status: of job, that of its run (0 green, 1 red …), but 0 for a part without cases; of page, 0 if every job left
# results and nothing is red, otherwise 1, or that of `harness matrix`. 2 for an invalid step or variable. 3 if an
# environment cannot be created, or the machine does not match the plan.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

file=${MATRIX_FILE:-configs/matrix.yaml}
results=${MATRIX_RESULTS:-matrix-results}
page=${MATRIX_PAGE:-matrix-page}
cache=${MATRIX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-conformance-harness/environments}
torch_index=${MATRIX_TORCH_INDEX:-https://download.pytorch.org/whl}
unset PYTEST_ADDOPTS

# Prints an error, also as an annotation on GitHub, and exits.
fail() {
    local status=$1
    shift
    error "$@"
    exit "$status"
}

error() {
    if [[ -n ${GITHUB_ACTIONS:-} ]]; then printf '::error title=hardware matrix::%s\n' "$*" >&2; fi
    printf 'ci/matrix.sh: %s\n' "$*" >&2
}

# Prints the Python of a virtual environment, which is created once per content of the files that determine it. `$1` is
# its name, `$2` the Python to create it with, `$3` the release of torch or nothing, `$4` its build or nothing.
environment() {
    local name=$1 base=$2 torch=$3 build=$4 key folder lock
    command -v "$base" >/dev/null || fail 3 "there is no $base: install it, or name a Python by MATRIX_PYTHON"
    key=$(cat constraints.txt pyproject.toml <("$base" --version) <(echo "$torch $build") | sha256sum | cut -c1-16)
    folder=$cache/$name-$key
    mkdir -p "$cache"
    # Other jobs of the plan start at the same time, on other hosts that share the folder. The lock ends with the caller's
    # subshell.
    exec {lock}>"$folder.lock"
    flock "$lock"
    if [[ ! -e $folder/complete ]]; then
        rm -rf "$folder"
        "$base" -m venv "$folder"
        grep -v '^torch==' constraints.txt >"$folder/constraints.txt"
        if [[ -n $torch ]]; then
            "$folder/bin/pip" install -q -c "$folder/constraints.txt" "$(release torch "$torch")" \
                ${build:+--index-url "$torch_index/$build"} >&2
        fi
        requirements "$folder/bin/python" "$name" | "$folder/bin/pip" install -q -c "$folder/constraints.txt" -r /dev/stdin >&2
        touch "$folder/complete"
    fi
    # An editable install names one checkout. The next night may use another.
    "$folder/bin/pip" install -q --no-deps -e . >&2
    echo "$folder/bin/python"
}

# Prints the requirement for a release: 2.13 is any 2.13.x.
release() { [[ $2 == *.*.* ]] && echo "$1==$2" || echo "$1==$2.*"; }

# Prints the harness's dependencies other than torch, and those of a history if the environment's name `$2` says so.
# Plans and pages need no torch.
requirements() {
    "$1" -c 'import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
more = project["optional-dependencies"]["history"] if sys.argv[1].endswith("-history") else []
for each in project["dependencies"] + more:
    if not each.startswith("torch"):
        print(each)' "$2"
}

# Prints the Python of plan and page.
tools() {
    if [[ -n ${MATRIX_PYTHON:-} ]]; then echo "$MATRIX_PYTHON"; else environment "tools${MATRIX_HISTORY:+-history}" python3 "" ""; fi
}

# Prints the Python of a job. MATRIX_PYTHON must have the torch of the plan.
job_python() {
    local found
    if [[ -z ${MATRIX_PYTHON:-} ]]; then
        environment "torch$MATRIX_TORCH-${MATRIX_BUILD:-default}" "python$MATRIX_PYTHON_VERSION" "$MATRIX_TORCH" \
            "${MATRIX_BUILD:-}"
        return
    fi
    found=$("$MATRIX_PYTHON" -c 'from importlib.metadata import version; print(version("torch"))')
    [[ ${found%%+*}. == "$MATRIX_TORCH".* ]] ||
        fail 3 "MATRIX_PYTHON='$MATRIX_PYTHON' has torch $found, and the plan says $MATRIX_TORCH"
    echo "$MATRIX_PYTHON"
}

# The driver of the machine must match the plan, which has a release or a prefix of one.
check_driver() {
    local python=$1 found
    [[ -n ${MATRIX_DRIVER:-} ]] || return 0
    found=$("$python" -m harness devices --device "$MATRIX_DEVICE" --json |
        "$python" -c 'import json, sys; print(json.load(sys.stdin)["driver"] or "none")')
    [[ $found. == "$MATRIX_DRIVER".* ]] || fail 3 "driver $found is on this machine, and the plan says $MATRIX_DRIVER"
}

wanted() {
    local name
    for name in "$@"; do
        [[ -n ${!name:-} ]] || fail 2 "$name is not set: it is a value of the plan"
    done
}

# Prints the folder of a job's run directory.
folder() {
    local part=${MATRIX_SHARD:-whole}
    echo "$results/$MATRIX_RUN/${part/\//of}"
}

plan() {
    local python each whens machines options=()
    python=$(tools)
    read -ra whens <<<"${MATRIX_WHEN:-nightly}"
    read -ra machines <<<"${MATRIX_MACHINES:-}"
    for each in "${whens[@]}"; do options+=(--when "$each"); done
    for each in "${machines[@]}"; do options+=(--machine "$each"); done
    "$python" -m harness matrix plan "${options[@]}" "$@" -- "$file"
}

job() {
    local python status=0
    wanted MATRIX_RUN MATRIX_HARDWARE MATRIX_DEVICE MATRIX_TORCH MATRIX_PYTHON_VERSION MATRIX_PROFILE
    python=$(job_python)
    check_driver "$python"
    # Values are joined to their options: a value such as --version would be an option of its own, and no case would run.
    "$python" -m pytest suites/ --numprocesses="${MATRIX_WORKERS:-auto}" --device="$MATRIX_DEVICE" \
        --hardware="$MATRIX_HARDWARE" --profile="$MATRIX_PROFILE" ${MATRIX_SHARD:+"--shard=$MATRIX_SHARD"} \
        --results-dir="$(folder)" --junit-flavour="${MATRIX_JUNIT:-default}" || status=$?
    if ((status == 0)) && [[ ! -s $(folder)/journal.ndjson ]]; then
        fail 1 "pytest ended with 0 and left no results in $(folder): no case ran"
    fi
    # A small part may have no case that runs here. The merged run shows whether any ran.
    if [[ -n ${MATRIX_SHARD:-} ]] && ((status == 5)); then status=0; fi
    return "$status"
}

summary() {
    local python
    wanted MATRIX_RUN MATRIX_TORCH GITHUB_STEP_SUMMARY
    [[ -e $(folder)/journal.ndjson ]] || fail 1 "this job left no results: see its log"
    python=$(job_python)
    "$python" -m harness report markdown "$(folder)" --annotations -o "$GITHUB_STEP_SUMMARY"
}

page() {
    local python run part status=0 matrix=0 names merged parts runs=()
    python=$(tools)
    mkdir -p "$page"
    # Not within <(…), where failures go unnoticed.
    names=$(plan --format names ${MATRIX_BY:+--by "$MATRIX_BY"})
    while read -r part; do
        if [[ ! -e $results/$part/journal.ndjson ]]; then
            error "job $part left no results: its machine was not reached, or it ended before its run began"
            status=1
        fi
    done <<<"$names"
    for run in "$results"/*/; do
        parts=("$run"*of*/)
        if [[ ! -d ${parts[0]} ]]; then
            runs+=("$run")
            continue
        fi
        merged=$page/merged/$(basename "$run")
        rm -rf "$merged"
        # A red merge has written its run. A refused one has not, and prints the reason.
        "$python" -m harness report merge "${parts[@]}" -o "$merged" || status=1
        if [[ -e $merged/journal.ndjson ]]; then
            runs+=("$merged")
        else
            error "the parts of $(basename "$run") are not one run: see the log"
            runs+=("$run")
        fi
    done
    [[ -e ${runs[0]:-} ]] || fail 1 "no job left results below '$results'"
    "$python" -m harness matrix page "${runs[@]}" -o "$page/matrix.html" --json "$page/matrix.json" \
        >"$page/matrix.txt" || matrix=$?
    cat "$page/matrix.txt"
    if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
        # Lines indented by four are code, in which no text of a case has an effect.
        printf '## Hardware matrix\n\n%s\n' "$(sed 's/^/    /' "$page/matrix.txt")" >>"$GITHUB_STEP_SUMMARY"
    fi
    if ((matrix)); then error "the matrix is red: see its page"; fi
    if [[ -n ${MATRIX_HISTORY:-} ]]; then remember "$python" "${runs[@]}" || status=1; fi
    return $((matrix ? matrix : status))
}

# Enters the runs in the history, writes its pages, and sends notifications. It does not fail for red runs, only if the
# history or the rules cannot be used.
remember() {
    local python=$1 run failed=0
    shift
    mkdir -p "$(dirname "$MATRIX_HISTORY")"
    "$python" -m harness history add "$@" --db "$MATRIX_HISTORY" || failed=1
    "$python" -m harness history export --db "$MATRIX_HISTORY" -o "$page/history" || failed=1
    if [[ -n ${MATRIX_NOTIFY:-} ]]; then
        for run in "$@"; do
            "$python" -m harness notify "$run" --db "$MATRIX_HISTORY" --rules "$MATRIX_NOTIFY" || failed=1
        done
    fi
    if ((failed)); then error "the history '$MATRIX_HISTORY' does not have all runs, or people were not told: see the log"; fi
    return "$failed"
}

case ${1:-} in
plan)
    plan --format "${2:-table}"
    ;;
job | summary | page)
    "$1"
    ;;
*)
    fail 2 "unknown step '${1:-}': expected plan, job, summary or page"
    ;;
esac

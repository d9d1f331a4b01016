#!/usr/bin/env bash
# Slurm: is this node ready? One file for Prolog, Epilog and HealthCheckProgram. README.md beside it has the details.
#
#   Prolog              before a job: the GPUs of the job must be idle and sound. If not, the node is drained with the
#                       reason, and Slurm requeues the job
#   Epilog              after a job: what the job has left. If the node is not ready, it is drained with the reason
#   HealthCheckProgram  at other times: readings only, beside running jobs. Same consequence
#
# Settings are in harness-ready.conf beside this file:
#
#   READY_HARNESS=/opt/conformance/bin/harness   the command; default: harness in the PATH below
#   READY_OPTIONS=(--hardware h200)              options of every check
#   READY_PROLOG=(--budget 20s)                  and of each one; default: --passive
#   READY_EPILOG=(--passive)  READY_HEALTH=(--passive)
#   READY_WITHOUT_VERDICT=drain                  default: log. What happens if the check itself fails: a typing error in
#                                                a file would drain every node
#
# Slurm gives these programs no PATH, and kills a HealthCheckProgram after 60 seconds; readings take 45 at most, also
# with a driver that hangs.
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${PATH:-}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
READY_HARNESS=harness
READY_OPTIONS=() READY_PROLOG=(--passive) READY_EPILOG=(--passive) READY_HEALTH=(--passive)
READY_WITHOUT_VERDICT=log
# shellcheck source=/dev/null
if [[ -e $here/harness-ready.conf ]]; then source "$here/harness-ready.conf"; fi

node=${SLURMD_NODENAME:-$(hostname -s)}

# Writes a line to the system's log, and to slurmd's.
note() {
    echo "harness ready: $1" >&2
    if command -v logger >/dev/null; then logger -t harness-ready -- "$1" || true; fi
}

drain() {
    note "node $node is drained: $1"
    scontrol update "NodeName=$node" State=DRAIN "Reason=harness: $1" || note "the node could not be drained"
}

# Runs the check. Returns 0 if the node may get work.
check() {
    local line status=0
    line=$("$READY_HARNESS" ready "$@" "${READY_OPTIONS[@]}" 2>/dev/null </dev/null) || status=$?
    # Other programs end with 1, too: without a line there is no verdict.
    if ((status == 1)) && [[ -z $line ]]; then status=2; fi
    case $status in
    0) ;;
    1)
        drain "$line"
        return 1
        ;;
    *)
        note "no verdict: '$READY_HARNESS ready $* ${READY_OPTIONS[*]}' ended with $status"
        if [[ $READY_WITHOUT_VERDICT == drain ]]; then
            drain "no verdict, exit status $status"
            return 1
        fi
        ;;
    esac
}

case ${SLURM_SCRIPT_CONTEXT:-} in
prolog_slurmd)
    # A job without GPUs needs none. With some of them, Slurm sets CUDA_VISIBLE_DEVICES, and the others are not judged.
    if [[ -z ${SLURM_JOB_GPUS:-} ]]; then exit 0; fi
    check "${READY_PROLOG[@]}" --steps "$here/ready-idle.yaml"
    ;;
epilog_slurmd)
    if [[ -z ${SLURM_JOB_GPUS:-} ]]; then exit 0; fi
    check "${READY_EPILOG[@]}" --steps "$here/ready-idle.yaml"
    exit 0 # the node is drained already, and Slurm would replace nothing
    ;;
*)
    # All GPUs are checked, whatever the environment of slurmd hides.
    unset CUDA_VISIBLE_DEVICES
    check "${READY_HEALTH[@]}"
    exit 0
    ;;
esac

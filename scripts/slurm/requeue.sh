# Sourced by the jobs beside it: one run of fedfeat that is cut by SLURM, requeued, and goes on where it was.

# The same at every start of a job, so that its run directory is too; each task of an array has its own.
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}

# run_and_requeue OVERRIDES...: give the run's exit code, or requeue the job if SLURM has announced its end.
run_and_requeue() {
    local run code=0 announced=
    "${FEDFEAT:-.venv/bin/fedfeat}" "hydra.run.dir=${FEDFEAT_ROOT:-.}/logs/slurm/$job" \
        ${SLURM_ARRAY_TASK_ID:+"seed=$SLURM_ARRAY_TASK_ID"} "$@" &
    run=$!
    # USR1 is asked for by --signal. After a TERM, SLURM requeues what it preempts, and nobody what was cancelled.
    trap 'announced=yes; kill -USR1 $run' USR1
    trap 'kill -TERM $run' TERM
    # A signal ends `wait` before the run has ended.
    while kill -0 "$run" 2>/dev/null; do wait "$run" || true; done
    wait "$run" || code=$?
    if [[ $announced && $code == 138 ]]; then # 128 + USR1: stopped by it, after its round
        scontrol requeue "$job"
    fi
    return "$code"
}

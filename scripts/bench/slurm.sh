#!/usr/bin/env bash
# Trains LeNet on two ranks by scripts/examples/train.sbatch, on a Slurm of this one machine, which it
# sets up in a temporary folder and takes down again. Prints the job's output; exits with 1 if the
# job failed or was not on two ranks.
#
# Needs root and Slurm, as in: apt-get install slurm-wlm munge
#
# Usage: scripts/bench/slurm.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  printf 'slurm: %s\n' "$*" >&2
  exit 1
}

((EUID == 0)) || fail "Slurm's daemons are started here, which takes root."
for command in munged slurmctld slurmd sbatch srun; do
  command -v "$command" >/dev/null || fail "$command is missing; apt-get install slurm-wlm munge."
done

folder=$(mktemp -d /tmp/flexlegion-slurm.XXXXXX)
export SLURM_CONF=$folder/slurm.conf
stop() {
  local pid
  for pid in "$folder"/*.pid; do
    [[ -e $pid ]] && kill "$(<"$pid")" 2>/dev/null && tail --pid="$(<"$pid")" -f /dev/null
  done
  rm -rf "$folder"
}
trap stop EXIT

# --- munge, by which Slurm's programs trust each other ---

chmod 755 "$folder"
head -c 1024 /dev/urandom >"$folder/key"
chmod 600 "$folder/key"
munged --force --key-file="$folder/key" --socket="$folder/munge" --pid-file="$folder/munged.pid" \
  --seed-file="$folder/seed" --log-file="$folder/munged.log"

# --- Slurm ---

host=$(hostname -s)
cpus=$(nproc)
((cpus >= 2)) || fail "two ranks of a core each take two cores, and there is one."
mkdir "$folder/state" "$folder/spool"
cat >"$SLURM_CONF" <<EOF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$folder/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus
PartitionName=all Nodes=ALL Default=YES State=UP
EOF
slurmctld
slurmd

# --- the job ---

for _ in $(seq 30); do
  [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]] && break
  sleep 1
done
# The options of the command line count before those of the script.
status=0
timeout 300 sbatch --quiet --wait --output="$folder/out" --nodes=1 --ntasks-per-node=2 \
  --cpus-per-task=1 scripts/examples/train.sbatch || status=$?
[[ -e $folder/out ]] || fail "the job did not run; slurmd says: $(tail -n 3 "$folder/slurmd.log")"
cat "$folder/out"
((status == 0)) || fail "the job ended with status $status."
grep -q '; 2 processors on 2 ranks; ' "$folder/out" || fail "that was not on two ranks."

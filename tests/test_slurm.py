"""A study through `profiles/slurm` and a real Slurm, begun here: one node, four cores, four devices that stand in for GPUs."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from lad_utils import runner
from lad_utils.params import REPOSITORY

DAEMONS = ("munged", "slurmctld", "slurmd")
PLACES = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
ABSENT = [name for name in (*DAEMONS, "sbatch", "srun", "squeue", "scancel") if not shutil.which(name, path=PLACES)]
NEEDS = "apt-get install --no-install-recommends slurm-wlm slurm-wlm-basic-plugins slurm-client munge"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(ABSENT), reason=f"no Slurm here, not found: {', '.join(ABSENT)}; Debian: {NEEDS}"),
    pytest.mark.skipif(os.getuid() != 0, reason="Slurm's daemons and stand-ins for GPUs need root"),
]

CONF = """\
ClusterName=lad
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=300
KillWait=5
GresTypes=gpu
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 Gres=gpu:4 State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""

# A job says when it begins, on which device, and when it ends; a second one of its name beside it would say so, too.
JOB = """\
exec 9> "$2/$1.lock"
flock --nonblock 9 || echo "twice $1" >> "$2/log"
echo "start $1 $CUDA_VISIBLE_DEVICES" >> "$2/log"
while [ -e "$2/$1.held" ]; do sleep 0.1; done
if [ -e "$2/$1.fails" ]; then rm "$2/$1.fails"; exit 1; fi
echo "end $1" >> "$2/log"
touch "$1.done"
"""
TOY = """\
rule all:
    input: [f"{n}.done" for n in "abcd"]
rule base:
    output: "{n}.done"
    resources: gpu=1
    shell: "sh PLACE/job {wildcards.n} PLACE"
"""
DRIVER = """\
import subprocess, sys
from lad_utils import runner
start = subprocess.Popen
def popen(command, **options):
    if "--snakefile" in command:
        command[command.index("--snakefile") + 1] = sys.argv[1]
    return start(command, **options)
subprocess.Popen = popen
sys.exit(runner.main(["smoke", "--profile", "slurm", "--gpus", "4", "--until", "base"]))
"""


def until(true, *, what: str, within: float = 60.0):
    """Poll until something holds."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {what}"
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def ask(slurm: dict, *command: str) -> str:
    return subprocess.run(command, env=slurm, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture(scope="module")
def slurm():
    """The environment in which Slurm's commands reach the one that runs for these tests; all of it ends with them."""
    place = Path(tempfile.mkdtemp(prefix="lad-slurm-"))  # a socket's path must be short
    for name in ("bin", "state", "spool"):
        (place / name).mkdir()
    (place / "munge.key").write_bytes(os.urandom(128))
    (place / "munge.key").chmod(0o400)
    conf = place / "slurm.conf"
    conf.write_text(CONF.format(place=place, ports=free_ports(2), host=socket.gethostname().partition(".")[0]))
    for i in range(4):  # plain files would leave CUDA_VISIBLE_DEVICES empty
        os.mknod(place / f"device{i}", 0o666 | 0o020000, os.makedev(1, 3))
    devices = [f"Name=gpu File={place}/device{i}\n" for i in range(4)]
    (place / "gres.conf").write_text("AutoDetect=off\n" + "".join(devices))
    for name in ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol"):
        # An exported SLURM_CONF would be dropped before a job's inner srun.
        (place / "bin" / name).write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {shutil.which(name, path=PLACES)} "$@"\n')
        (place / "bin" / name).chmod(0o755)
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("SLURM_") and k not in (runner.MARK, "CUDA_VISIBLE_DEVICES")
    }
    environment = kept | {"PATH": f"{place / 'bin'}:{PLACES}"}
    munge = ["--key-file", "munge.key", "--socket", "munge.socket", "--pid-file", "munge.pid", "--seed-file", "munge.seed"]
    munge = [word if word.startswith("--") else str(place / word) for word in munge]
    commands = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D", "-c", "-f", conf]]
    commands += [["slurmd", "-D", "-c", "-f", conf, "-N", "localhost"]]
    daemons = []
    try:
        for command in commands:
            with open(place / f"{command[0]}.txt", "wb") as log:
                options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                daemons.append(subprocess.Popen(list(map(str, command)), env=environment, cwd=place, **options))
            if command[0] == "munged":
                until((place / "munge.socket").exists, what="munged is ready")
        until(lambda: ask(environment, "sinfo", "--noheader", "--format=%T").strip() == "idle", what="Slurm's node is idle")
        yield environment
    finally:
        ask(environment, "scancel", "--me")
        deadline = time.monotonic() + 20
        while ask(environment, "squeue", "--me", "--noheader").strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(place)


@pytest.fixture
def toy(tmp_path, slurm):
    """(folder, begin): `begin` starts a runner of four small jobs, a to d; what is left of it ends here."""
    (tmp_path / "Toy").write_text(TOY.replace("PLACE", str(tmp_path)))
    (tmp_path / "job").write_text(JOB)
    (tmp_path / "log").touch()
    begun = []

    def begin() -> subprocess.Popen:
        environment = slurm | {"LAD_OUTPUTS": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", DRIVER, str(tmp_path / "Toy")]
        with open(tmp_path / f"said{len(begun)}", "wb") as said:
            begun.append(subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT))
        return begun[-1]

    yield tmp_path, begin
    for process in begun:
        process.kill()
        process.wait()
    runner.end_processes(tmp_path / "smoke")
    ask(slurm, "scancel", "--me")
    until(lambda: not ask(slurm, "squeue", "--me", "--noheader").strip(), what="the queue is empty")


def counts(folder: Path) -> Counter:
    """('start', 'a') -> how often the log says so."""
    return Counter(tuple(line.split()[:2]) for line in (folder / "log").read_text().splitlines())


def jobs_of(slurm: dict, folder: Path) -> list[str]:
    """Names of the study's jobs that Slurm has not ended."""
    names = ask(slurm, "squeue", "--me", "--noheader", "--format=%j").split()
    return [name for name in names if name.startswith(runner.slurm_prefix(folder / "smoke") + "_")]


def test_jobs_side_by_side_have_a_device_each_and_one_that_fails_is_tried_again(toy):
    folder, begin = toy
    for name in "abcd":
        (folder / f"{name}.held").touch()
    (folder / "b.fails").touch()
    process = begin()
    until(lambda: sum(n for (said, _), n in counts(folder).items() if said == "start") == 4, what="four jobs run")
    assert sorted(re.findall(r"start \w (.*)", (folder / "log").read_text())) == ["0", "1", "2", "3"]
    for name in "abcd":
        (folder / f"{name}.held").unlink()
    assert process.wait(timeout=120) == 0, (folder / "said0").read_text()
    seen = counts(folder)
    assert [seen["start", n] for n in "abcd"] == [1, 2, 1, 1] and [seen["end", n] for n in "abcd"] == [1] * 4
    assert "00_micro_base b failed once and is tried again" in (folder / "said0").read_text()


def test_after_kill_9_of_the_driver_the_same_command_runs_no_job_beside_itself_and_each_to_its_end_once(toy, slurm):
    folder, begin = toy
    for name in "bcd":
        (folder / f"{name}.held").touch()
    first = begin()
    until(lambda: "] 00_micro_base a " in (folder / "said0").read_text(), what="one job is done", within=100)
    until(lambda: all(counts(folder)["start", n] for n in "bcd"), what="the others run")
    for process in [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]:
        process.kill()  # runner and snakemake
    first.wait()
    assert len(jobs_of(slurm, folder)) == 3, "Slurm runs them still"
    second = begin()
    until(lambda: all(counts(folder)["start", n] == 2 for n in "bcd"), what="the others run again")
    for name in "bcd":
        (folder / f"{name}.held").unlink()
    assert second.wait(timeout=120) == 0, (folder / "said1").read_text()
    assert "cancelled 3 Slurm jobs" in (folder / "said1").read_text()
    seen = counts(folder)
    assert not [line for line in seen if line[0] == "twice"]
    assert [seen["start", n] for n in "abcd"] == [1, 2, 2, 2] and [seen["end", n] for n in "abcd"] == [1] * 4


def test_a_stopped_run_leaves_nothing_in_slurm(toy, slurm):
    folder, begin = toy
    for name in "abcd":
        (folder / f"{name}.held").touch()
    process = begin()
    until(lambda: all(counts(folder)["start", n] for n in "abcd"), what="four jobs run")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130, (folder / "said0").read_text()
    assert not jobs_of(slurm, folder)
    assert "stopped; the same command continues" in (folder / "said0").read_text()


def test_the_smoke_studys_first_notebooks_run_in_slurm_with_the_cores_and_gpus_that_they_ask_for(tmp_path, slurm):
    command = [sys.executable, "-m", "lad_utils.runner", "smoke", "--profile", "slurm"]
    command += ["--cores", "1", "--gpus", "4", "--until", "cohorts"]
    environment = slurm | {"LAD_OUTPUTS": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "smoke" / "cohorts.parquet").is_file()
    assert '"cores": 1' in (tmp_path / "smoke" / "notebooks" / "01_cohorts.ipynb").read_text(), "not all of the machine's"
    prefix = runner.slurm_prefix(tmp_path / "smoke")
    asked = [job for job in ask(slurm, "scontrol", "--oneliner", "show", "job").splitlines() if prefix in job]
    assert [re.search(r"NumCPUs=(\d+)", job)[1] for job in asked] == ["1", "1"]
    assert all("TresPerJob=gres:gpu:1" in job for job in asked)

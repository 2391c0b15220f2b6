"""Your own fault: another program needs a core of this machine for a while."""

import subprocess
import sys

BUSY = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass"


def neighbor(run_dir, step, *, secs: float = 1.0):
    print(f"a neighbor of {run_dir.name} wakes up after step {step}")
    subprocess.Popen([sys.executable, "-c", BUSY, str(secs)])

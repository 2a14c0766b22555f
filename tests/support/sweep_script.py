"""A study to be killed: `python sweep_script.py FOLDER LOG ANSWERS` sweeps small runs and writes their records."""

import json
import signal
import sys
from pathlib import Path

from sweep_tasks import SmallRun

from weft.core.store import Store
from weft.sweep.tasks import run_tasks

SIZES = tuple(range(1024, 1024 + 12 * 128, 128))
ROWS = 1024

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
    folder, log, answers = sys.argv[1:]
    tasks = [SmallRun(k, log, ROWS) for k in SIZES]
    found = {task.k: record for task, record in run_tasks(tasks, jobs=2, store=Store(Path(folder)))}
    Path(answers).write_text(json.dumps(found, sort_keys=True))

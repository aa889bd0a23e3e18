"""A server of lives: every request forks a process that trains or resumes and is killed at the asked point.

One JSON object a line in, one out.  (Importing torch takes seconds, a fork does not.)  With ``once`` as argument the
request is on the command line and this very process lives it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from resume_checks import ARGUMENTS, Witness, fit, table

from dpml import PrivateTrainer


def live(request):
    """Fit, or resume if the folder has a run, until the end or the signal."""
    folder = Path(request["folder"])
    number = request.get("signal", signal.SIGKILL)

    def stop():
        os.kill(os.getpid(), number)

    pause = (lambda: time.sleep(request["pause"])) if "pause" in request else None
    chosen = {name: request[name] for name in ("point", "nth", "again") if name in request}
    Witness(setattr, folder, request["log"], stop=stop, pause=pause, **chosen)
    if (folder / "private/resume.json").exists():
        PrivateTrainer.resume(folder, table())
    else:
        fit(folder, **request.get("arguments", {}))


def forked(request):
    """Exit status of a child that lives the request (negative: the signal that ended it) and its stderr."""
    errors = Path(request["log"]).with_suffix(".err")
    handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)  # before the child, which may die at once
    child = os.fork()
    if child == 0:
        os.dup2(handle, 2)
        status = 1
        try:
            live(request)
            status = 0
        except SystemExit as stop:
            status = stop.code
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)
    os.close(handle)
    if "kill_after" in request:
        time.sleep(request["kill_after"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return {"status": os.waitstatus_to_exitcode(status), "stderr": errors.read_text()}


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
    PrivateTrainer(**ARGUMENTS).fit(table())  # in memory: loads every module and fills the accountants' caches
    if sys.argv[1:2] == ["once"]:
        live(json.loads(sys.argv[2]))
        return
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

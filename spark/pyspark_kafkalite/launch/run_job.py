"""Job launcher: runs a Python file with Spark configured for it.

    kafkalite spark run --master 'local[4]' job.py --topic flights

The file runs as with `python job.py --topic flights`, in an environment in which a session, ours or
from Spark's own SparkSession.builder, has our configuration (session.py) and finds Java and the
connector.  The command line overrides our configuration, and the file's own settings override
both, as usual in Spark.

The command exits with the job's exit code.  After an error from Spark, the last line is its
original message without the traces around it.  Ctrl-C ends the job with 130 and without a
traceback; its streams continue from their checkpoints at the next start.

Left out: cluster mode, in which the driver runs in the cluster; except on YARN and Kubernetes
spark-submit supports it for Java and Scala only.  Also messages of PySpark's own worker processes,
one of which may report a broken pipe when the driver ends while it works.
"""

from __future__ import annotations

import logging
import os
import runpy
import shlex
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from kafkalite.errors import Refusal
from pyspark_kafkalite.launch.error_summary import is_sparks, sentence_of
from pyspark_kafkalite.launch.session import LOCAL, complete, defaults, submitted
from pyspark_kafkalite.launch.versions import check

SUBMITTED = "PYSPARK_SUBMIT_ARGS"
SHELL = "pyspark-shell"
"""Application name that pyspark passes to spark-submit: this process is the program."""
INTERRUPTED = 130
NOT_STARTED = "JAVA_GATEWAY_EXITED"


def start(
    file: Path, arguments: Sequence[str], master: str | None, conf: Mapping[str, str]
) -> NoReturn:
    """Replace this process by the job; raise Refusal if it cannot be started."""
    check()
    if not file.is_file():
        raise Refusal(f"{file} is not a file: specify the Python file of a job")
    environment = job_environment(file.stem, master, conf)
    words = [sys.executable, "-P", "-m", __name__, str(file), *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, words, environment)


def job_environment(name: str, master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, completed for a job; raise NoJava if no Java is found."""
    given = submitted()
    where = master or conf.get("spark.master") or given.get("spark.master", LOCAL)
    ours = {"spark.app.name": name, **defaults(where)}
    settings = {key: value for key, value in ours.items() if key not in given}
    environment = dict(os.environ)
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    words += [word for word in shlex.split(environment.get(SUBMITTED, "")) if word != SHELL]
    for key, value in {**conf, "spark.master": where}.items():
        words += ["--conf", f"{key}={value}"]
    environment[SUBMITTED] = shlex.join([*words, SHELL])
    complete(environment, where)
    return environment


def main(arguments: Sequence[str]) -> int:
    """Run a job's file in this process and return its exit code."""
    file = arguments[0]
    logging.getLogger().addFilter(not_of_interrupt)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # see doctor
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        runpy.run_path(file, run_name="__main__")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Refusal as refusal:
        print(f"kafkalite: {refusal}", file=sys.stderr)
        return refusal.exit_code
    except Exception as error:
        if getattr(error, "getCondition", lambda: None)() == NOT_STARTED:
            message = "Spark did not start; its messages are above"
            print(
                f"kafkalite: {message}: run kafkalite spark doctor to find the cause",
                file=sys.stderr,
            )
        else:
            traceback.print_exception(error.with_traceback(of_job(error.__traceback__, file)))
            if is_sparks(error):
                sys.stderr.flush()
                print(f"kafkalite: {sentence_of(error)}", file=sys.stderr)
        return 1
    finally:
        sys.stdout.flush()
    return 0


def not_of_interrupt(record: logging.LogRecord) -> bool:
    """Return whether to log a record; drops the traceback Py4J logs for calls ended by Ctrl-C."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        # PySpark handles the signal during a Py4J call with another such call, which fails.
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return False
        error = error.__cause__ or error.__context__
    return True


def of_job(trace: TracebackType | None, file: str) -> TracebackType | None:
    """Return a traceback from the job's first frame on."""
    place = trace
    while place is not None and place.tb_frame.f_code.co_filename != file:
        place = place.tb_next
    return place or trace


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

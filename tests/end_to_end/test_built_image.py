"""The image that the Dockerfile builds: it trains, saves on SIGTERM, and runs what a Job prints.

STEADFAST_TEST_IMAGE_BASE names the base image, such as python:3.11-slim-bookworm. Podman or Docker
builds and runs; each build installs TensorFlow anew.
"""

import os
import shutil
import subprocess
import time

import pytest

from tests.support.pods import job_of
from tests.support.processes import ROOT

BASE = os.environ.get("STEADFAST_TEST_IMAGE_BASE")
BUILDER = shutil.which("podman") or shutil.which("docker")  # without its daemon it is no use
IMAGE = f"steadfast-test:{os.getpid()}"
CONTAINER = f"steadfast-test-{os.getpid()}"
BUILD_SECS, SECS = 1800, 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BASE is None, reason="STEADFAST_TEST_IMAGE_BASE names no base image"),
    pytest.mark.skipif(BUILDER is None, reason="neither Podman nor Docker is installed"),
]


def builder(*words, secs=SECS, code=0):
    """Return what a command of the builder prints; it ends with the exit code."""
    assert BUILDER is not None
    done = subprocess.run(
        [BUILDER, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=secs
    )
    assert done.returncode == code, done.stdout[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def image():
    builder(
        "build", "--build-arg", f"BASE={BASE}", "--build-arg", "EXTRAS=s3 gcs", "--tag", IMAGE,
        str(ROOT), secs=BUILD_SECS,
    )  # fmt: skip
    yield IMAGE
    builder("rmi", IMAGE)


@pytest.fixture
def container():
    """The name of a container, which is removed."""
    yield CONTAINER
    builder("rm", "--force", CONTAINER)


def wait_for_line(container, text):
    deadline = time.monotonic() + SECS
    while text not in (logs := builder("logs", container)):
        assert time.monotonic() < deadline, logs
        time.sleep(0.2)


def test_image_saves_on_sigterm_and_continues(image, container):
    builder("create", "--name", container, image, "model=softmax", "train.steps=1000000000")
    for num_stops, line in enumerate(("  test ", "Continuing from the checkpoint"), start=1):
        builder("start", container)
        wait_for_line(container, line)
        first = builder("exec", container, "cat", "/proc/1/cmdline").split("\0")
        assert "/opt/steadfast/bin/steadfast" in first
        builder("stop", "-t", "60", container)
        assert builder("inspect", "--format", "{{.State.ExitCode}}", container).strip() == "143"
        saved = "Stopped after saving; the same command continues."
        assert builder("logs", container).count(saved) == num_stops


def test_image_runs_the_job(image, container):
    words = ["model=softmax", "train.steps=20", "runs_dir=/shared/runs"]
    pod = job_of(words, 1)[-1]["spec"]["template"]["spec"]
    (job,) = pod["containers"]
    (program,) = job["command"]
    (volume,) = job["volumeMounts"]
    assert job["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    printed = builder(
        "run", "--name", container, "--user", user, "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--tmpfs", f"{volume['mountPath']}:mode=1777",
        "--entrypoint", program, image, *job["args"],
    )  # fmt: skip
    assert "Done: step 20" in printed


def test_image_has_the_optional_requirements(image, container):
    script = "import os, boto3, google.cloud.storage; print(os.getuid(), os.getcwd())"
    printed = builder("run", "--name", container, "--entrypoint", "python", image, "-c", script)
    assert printed.splitlines()[-1] == "1000 /home/steadfast"

"""The steps of both images, run in fresh environments without a Docker engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import plain

ROOT = Path(__file__).parents[2]


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Yield (RUN, its command), (COPY, its words) and so on, in order."""
    for line in (ROOT / "docker" / dockerfile).read_text().replace("\\\n", "").splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


class Image:
    """The result of a Dockerfile, as a virtual environment and a working directory."""

    def __init__(self, dockerfile: str, folder: Path) -> None:
        self.workdir = folder / "src"
        self.workdir.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(folder / "python")], check=True)
        unset = plain()
        # Of torch's 2,000 files few are used here, so pip need not compile them: that is what its 0 says.
        path = f"{folder / 'python' / 'bin'}:{unset['PATH']}"
        self.environment = unset | {"PATH": path, "PIP_NO_COMPILE": "0"}
        self.command: list[str] = []
        for name, rest in instructions(dockerfile):
            if name == "COPY":
                self.copy(*rest.split())
            elif name == "RUN":
                subprocess.run(["sh", "-ec", rest], cwd=self.workdir, env=self.environment, check=True)
            elif name == "CMD":
                self.command = json.loads(rest)
            else:
                assert name in ("FROM", "ARG", "WORKDIR"), name

    def copy(self, *paths: str) -> None:
        *sources, target = paths
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, self.workdir / target)
            else:
                shutil.copy(ROOT / source, self.workdir / target)

    def start(self) -> subprocess.Popen[str]:
        """Start the image's command, with its output and errors on one pipe."""
        return subprocess.Popen(
            self.command,
            cwd=self.workdir,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_host_image_has_the_command_and_serves(tmp_path: Path) -> None:
    image = Image("Dockerfile.host", tmp_path)

    version = subprocess.run(["probe", "--version"], env=image.environment, capture_output=True, text=True)
    with image.start() as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        server.terminate()

    assert version.stdout.startswith("probe")
    assert "unix:" in said or "listening" in said


@pytest.mark.long
@pytest.mark.timeout(300)
def test_demo_image_trains(tmp_path: Path) -> None:
    image = Image("Dockerfile.demo", tmp_path)

    with image.start() as training:
        assert training.stdout is not None
        said = [training.stdout.readline() for _ in range(2)]
        training.kill()

    assert "parameters" in said[0]
    assert said[1].startswith("step    50")

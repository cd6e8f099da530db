"""Import contracts between the packages, and modules that may not be loaded."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import probe_agent
import probe_cli

ROOT = Path(__file__).parents[2]
RECORDER = ROOT / "probe_agent" / "recorder"
#: Imports inside functions, outside the recorder: doors that can be counted.
MAX_DOORS = 15
HEAVY = {
    "asyncio",
    "duckdb",
    "fastapi",
    "httpx",
    "matplotlib",
    "nanoarrow",
    "numpy",
    "prompt_toolkit",
    "pydantic",
    "rich",
    "textual",
    "torch",
    "uniplot",
    "uvicorn",
}


def test_the_arrows_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_help_loads_no_heavy_module() -> None:
    code = "import sys\nfrom probe_cli.main import run\nrun(['--help'])\nprint(*sys.modules, file=sys.stderr)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "Usage: probe" in done.stdout
    assert set(done.stderr.split()) & HEAVY == set()


def test_help_costs_little_more_than_click_does() -> None:
    def cpu_s(*command: str | Path) -> float:
        """Return the CPU time, which a busy machine stretches less than the wall clock."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    help_s = min(cpu_s(Path(sys.executable).with_name("probe"), "--help") for _ in range(5))
    click_s = min(cpu_s(sys.executable, "-c", "import click") for _ in range(5))

    assert help_s < 3.5 * click_s


def doors() -> list[tuple[str, str, bool]]:
    """Every import inside a function: file and line, the statement, and whether a comment gives the reason."""
    found = []
    for path in (*ROOT.glob("probe_agent/**/*.py"), *ROOT.glob("probe_cli/**/*.py")):
        if RECORDER in path.parents:
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        inside = {
            node.lineno: ast.unparse(node)
            for function in ast.walk(ast.parse(text))
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        for number, statement in inside.items():
            around = lines[number - 2 : number]
            reason = any(line.partition("#")[2].strip() for line in around if not line.strip().startswith('"'))
            found.append((f"{path.relative_to(ROOT)}:{number}", statement, reason))
    return found


def test_few_imports_stand_inside_functions_and_each_says_why() -> None:
    assert len(doors()) <= MAX_DOORS, "\n".join(f"{place}: {statement}" for place, statement, _ in doors())
    assert [(place, statement) for place, statement, has_reason in doors() if not has_reason] == []


def test_modules_are_looked_through_in_a_copy_because_another_thread_may_import() -> None:
    loops = [
        f"{path.relative_to(ROOT)}:{node.iter.lineno}"
        for path in ROOT.glob("probe_agent/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.For | ast.comprehension)
        and ast.unparse(node.iter)
        in {"sys.modules", *(f"sys.modules.{view}()" for view in ("items", "keys", "values"))}
    ]

    assert loops == []


#: What reads gradients on the training thread: no other thread may while the job works (steps/gradient_reader.py).
READS_GRADIENTS = {"steps/gradient_reader.py", "steps/tensor_reader.py", "steps/updates.py", "torch/device.py"}


def test_gradients_are_read_on_the_training_thread_alone() -> None:
    found = {
        str(path.relative_to(RECORDER))
        for path in RECORDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("grad", "_grad") and ast.unparse(node) != "autograd.grad"
    }

    assert found == READS_GRADIENTS


def test_the_agent_package_runs_nothing_when_imported() -> None:
    code = "import sys\nbefore = set(sys.modules)\nimport probe_agent\nprint(*(set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) - {"__future__"} == {
        "probe_agent",
        "probe_agent.named_span",  # what a job may use
        "probe_agent.recorder",  # for its version
    }


def test_importing_the_command_line_costs_nothing_until_connect_is_asked_for() -> None:
    code = "import sys\nimport probe_cli\nprint(*sys.modules)\nprobe_cli.connect\nprint(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    before, after = (set(line.split()) for line in done.stdout.splitlines())
    assert before & HEAVY == set()
    assert {name for name in before if name.startswith("probe_")} == {"probe_cli"}
    assert "probe_cli.notebook" in after


@pytest.mark.parametrize("path", sorted(RECORDER.rglob("*.py")), ids=lambda path: str(path.relative_to(RECORDER)))
def test_the_recorder_imports_its_own_folder_and_the_standard_library(path: Path) -> None:
    depth = len(path.relative_to(RECORDER).parts)

    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level <= depth, f"line {node.lineno} leaves the folder"
        elif isinstance(node, ast.ImportFrom):
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names, f"line {node.lineno}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name.partition(".")[0] in sys.stdlib_module_names, f"line {node.lineno}"


def modules() -> list[str]:
    found = [
        module.name
        for package in (probe_agent, probe_cli)
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    ]
    return [name for name in found if ".activate.path" not in name]


@pytest.mark.parametrize("name", modules())
def test_everything_in_all_exists(name: str) -> None:
    module = importlib.import_module(name)

    promised = getattr(module, "__all__", [])

    assert [each for each in promised if not hasattr(module, each)] == []
    assert len(set(promised)) == len(promised)


@pytest.mark.parametrize("path", sorted((ROOT / "probe_cli").rglob("*.py")), ids=lambda path: path.stem)
def test_every_module_of_the_command_line_says_why_it_exists_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())

    assert ast.get_docstring(tree)
    assert any(
        isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in ast.unparse(node).split("=")[0]
        for node in tree.body
    )

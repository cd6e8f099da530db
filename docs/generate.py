"""Generator of docs/reference/ from the code that it documents.

python docs/generate.py           writes the pages
python docs/generate.py --check   exits with 1 and names the stale pages
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

REFERENCE = Path(__file__).parent / "reference"
TESTS = Path(__file__).parents[1] / "tests"
SETTINGS_HEAD = """\
<!-- Generated from probe_agent/recorder/config.py by `make docs`; change it there. -->

# Settings

`probe ENDPOINT config` shows all settings; `probe ENDPOINT config NAME=VALUE` changes a live one until `NAME=default`
resets it. If another value is in force, `config` shows it and says why. The recorder reads its environment variables
when it starts in the target. It ignores misspelled names and invalid values, and reports them: in a line on stderr if
the job starts with `PROBE=1`, in `probe ENDPOINT config`, and in `probe.errors`. `probe` reports misspelled names in
its own environment.

These variables are read before the recorder starts, and decide whether it starts. With an invalid value the job runs
unrecorded, and one line on stderr says so.

| variable | value | meaning |
|---|---|---|
| `PROBE` | `1`, `all`, or `0` | `1` records the processes that you or a launcher (torchrun, accelerate, \
deepspeed) start, not the launcher. `all` also records their children: DataLoader workers, multiprocessing, Python \
tools; never pip or compile workers |
| `PROBE_SCRIPT` | a name, with `*` and `?` | only the script with that name (`train_*.py`), or the module after \
`-m` (`package.train`) |
| `PROBE_RANKS` | ranks and ranges, `0,4-7` | only processes whose `RANK` is one of these; a process \
without `RANK` is rank 0 |
| `PROBE_LISTEN` | `127.0.0.1:8080` or `unix:/path` | the first target starts the host server there, unless one \
listens already; the server ends a minute after the last target. TCP requires a token, as with `probe serve`; the \
server reads the variables below. `probe run` starts it with its own Python, `PROBE=1` with that of the target, \
which then needs Probe's packages. If it cannot start, `probe list` and `probe.errors` say why |

Variables of the host server and the command line ([security](../security.md)):

| variable | value | meaning |
|---|---|---|
| `PROBE_LINGER` | seconds | how long the host server that a command starts lingers without a question; 600 if unset; \
0: it ends with the command |
| `PROBE_RUNTIME_DIR` | a folder of your own | where the host server's unix socket is; `/dev/shm/probe-UID` if unset, \
or `/tmp/probe-UID` where that cannot be used |
| `PROBE_TOKEN_FILE` | a file | the full token; the read token is in the file of that name with the \
suffix `.read`. Default: `~/.config/probe/token` |
| `PROBE_TOKEN` | a token | the full token of the server, or the token that the command line sends |
| `PROBE_READ_TOKEN` | a token | the server's read token, together with `PROBE_TOKEN` |
| `PROBE_READ_MEMORY`, `PROBE_READ_TIMEOUT` | MB, seconds | the limits of a query with the read token, \
as `probe serve --read-memory` and `--read-timeout`; 512 and 10 by default |
| `PROBE_INSECURE` | `1` | the server requires no token, as `probe serve --insecure`; loopback only |
| `PROBE_TLS_CERT`, `PROBE_TLS_KEY`, `PROBE_TLS_CLIENT_CA` | files | the options `--tls-…` of `probe serve` |
| `PROBE_CA` | a file | the CA that signed the servers' certificates; default: `SSL_CERT_FILE`, then the system's CAs |
| `PROBE_CLIENT_CERT`, `PROBE_CLIENT_KEY` | files | the client certificate of the command line |

"""
TABLES_HEAD = """\
<!-- Generated from the table declarations in probe_agent/ by `make docs`; change it there. -->

# Tables

Times are in seconds, memory in MiB, timestamps in UTC. A recorded table lies in a ring, which keeps its newest rows.
The rows of a live table are collected when the query runs. A job can record its own tables, `job.NAME`
([how](../quickstart.md#record-your-own-values)). Every table begins with these columns:

"""
COMMANDS_HEAD = """\
<!-- Generated from probe_cli/ by `make docs`; change it there. -->

# Commands

"""
SITUATIONS_HEAD = """\
<!-- Generated from the markers of the tests (`pytest.mark.situation`) by `make docs`; change them there. -->

# Situations

What happens to a target in each state. A test on real processes holds every line and runs with every change, with short
loops. At full length, hundreds to a thousand rounds each:

```
python -m tests.integration.inject.full
```

The last result is in [benchmarks](../benchmarks.md#attach-hundreds-of-times).
"""
RULES_HEAD = """\
<!-- Generated from probe_cli/diagnose/rules/ by `make docs`; change it there. -->

# Rules

What `probe … diagnose` looks for ([how](../diagnose.md)). The statement of a rule is put to every target by itself, so
it can be tried with `probe PID query`. A threshold is changed with `--set RULE.NAME=NUMBER`.

"""
#: Folder of tests -> heading, in this order; others follow under their own names.
AREAS = {"inject": "Attach and detach", "cli": "From the command line", "activate": "Started with the job"}
HTTP_HEAD = """\
<!-- Generated from probe_agent/server/ by `make docs`; change it there. -->

# HTTP

"""


def text(value: str) -> str:
    """Escape for a cell of a Markdown table."""
    return " ".join(value.split()).replace("|", "\\|")


def table(head: list[str], body: list[list[str]]) -> str:
    """Render a Markdown table."""
    lines = [" | ".join(text(cell) for cell in row) for row in [head, *body]]
    return f"| {lines[0]} |\n|" + "---|" * len(head) + "\n" + "".join(f"| {line} |\n" for line in lines[1:])


def settings_page() -> str:
    from probe_agent.recorder.config import SETTINGS

    return SETTINGS_HEAD + table(
        ["setting", "default", "unit", "live", "environment", "meaning"],
        [
            [f"`{s.name}`", s.show(s.default), s.unit, "yes" if s.live else "no", f"`{s.env}`", s.meaning]
            for s in SETTINGS
        ],
    )


def tables_page() -> str:
    from probe_agent.recorder.ring.table import COORDINATES
    from probe_agent.sql.tables.declarations import live_tables, recorded_tables

    coordinates = [[f"`{column.name}`", column.sql_type, column.meaning] for column in COORDINATES]
    page = TABLES_HEAD + table(["column", "type", "meaning"], coordinates)
    for name, declared in sorted({**recorded_tables(), **live_tables()}.items()):
        kind = "Live." if name in live_tables() else f"Recorded; {declared.capacity:,} rows."
        page += f"\n## {name}\n\n{declared.doc} {kind}\n\n"
        columns = [[f"`{c.name}`", c.sql_type, c.unit, c.meaning] for c in declared.columns]
        page += table(["column", "type", "unit", "meaning"], columns)
    return page


def commands_page() -> str:
    from probe_cli import commands, main

    page = COMMANDS_HEAD + "```\n" + help_of(main.cli, "probe") + "\n```\n"
    for name in commands.names():
        page += f"\n## {name}\n\n```\n{help_of(commands.load(name), f'probe [ENDPOINT] {name}')}\n```\n"
    return page


def help_of(command: click.Command, called: str) -> str:
    """Return what --help prints, 100 columns wide."""
    context = click.Context(command, info_name=called, terminal_width=100, max_content_width=100)
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def situations_page() -> str:
    page, area = SITUATIONS_HEAD, ""
    order = [*AREAS]
    modules = [(path, found) for path in TESTS.rglob("test_*.py") if (found := situations_of(path))]
    for path, found in sorted(modules, key=lambda one: ([*order, one[0].parent.name].index(one[0].parent.name), one)):
        if path.parent.name != area:
            area = path.parent.name
            page += f"\n## {AREAS.get(area, area.capitalize())}\n"
        claim = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem).splitlines()[0]
        link = f"../../{path.relative_to(TESTS.parent)}"
        rows = [[state, outcome, f"[`{test}`]({link})"] for state, outcome, test in found]
        page += f"\n{claim}\n\n" + table(["state", "what happens", "test"], rows)
    return page


def situations_of(path: Path) -> list[tuple[str, str, str]]:
    """Return (state, outcome, test) of each marker in a test file, on a test or on one of its parameters."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    assigned = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for test in ast.walk(module):
        if isinstance(test, ast.FunctionDef):
            nodes = [node for decorator in test.decorator_list for node in ast.walk(decorator)]
            named = [assigned[node.id] for node in nodes if isinstance(node, ast.Name) and node.id in assigned]
            for mark in markers([*test.decorator_list, *named]):
                state, outcome = (ast.literal_eval(argument) for argument in mark.args)
                found.append((state, outcome, test.name))
    if len(found) < len(list(markers([module]))):
        raise ValueError(f"{path}: a situation without a test")
    return found


def markers(nodes: list[Any]) -> Iterator[ast.Call]:
    """Yield the calls of `pytest.mark.situation` in these nodes."""
    calls = (node for outer in nodes for node in ast.walk(outer) if isinstance(node, ast.Call))
    yield from sorted(
        (call for call in calls if ast.unparse(call.func) == "pytest.mark.situation"), key=lambda call: call.lineno
    )


def http_page() -> str:
    from probe_agent.server.app import create_app

    described = create_app().openapi()
    page = HTTP_HEAD + inspect.cleandoc(described["info"]["description"]) + "\n"
    for path, methods in described["paths"].items():
        for method, endpoint in methods.items():
            page += f"\n## {method.upper()} {path}\n\n{inspect.cleandoc(endpoint['description'])}\n"
            body, answer = schema_in(endpoint.get("requestBody", {})), schema_in(endpoint["responses"]["200"])
            role = f" Role: {endpoint['x-role']}.\n"
            page += (f"\nBody: {kind_of(body)}. " if body else "\n") + f"Answer: {kind_of(answer)}." + role
            if "parameters" in endpoint:
                rows = [[f"`{p['name']}`", kind_of(p["schema"]), p["description"]] for p in endpoint["parameters"]]
                page += "\n" + table(["parameter", "type", "meaning"], rows)
    page += "\n# Objects\n"
    for name, schema in described["components"]["schemas"].items():
        if "properties" in schema and "ValidationError" not in name:
            page += f"\n## {name}\n\n{inspect.cleandoc(schema.get('description', ''))}\n\n"
            fields = schema["properties"].items()
            rows = [[f"`{field}`", kind_of(of), of.get("description", "")] for field, of in fields]
            page += table(["field", "type", "meaning"], rows)
    return page


def schema_in(holder: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a request or a response."""
    return next((media["schema"] for media in holder.get("content", {}).values() if "schema" in media), {})


def kind_of(schema: dict[str, Any]) -> str:
    """Return the type of a JSON value in words, with its default."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        kind = " or ".join(kind_of(choice) for choice in schema["anyOf"])
    elif schema.get("type") == "array":
        kind = "list of " + kind_of(schema.get("items", {}))
    else:
        kind = schema.get("type", "anything")
    default = schema.get("default")
    return kind if default is None else f"{kind}, default {str(default).lower()}"


def rules_page() -> str:
    from probe_cli.diagnose.rules import page, rules

    found = RULES_HEAD + table(
        ["rule", "family", "question"],
        [[f"[{one.name}](#{one.name})", one.family, one.question] for one in rules().values()],
    )
    for name, rule in rules().items():
        found += f"\n## {name}\n\n{page(name)}\n\n"
        if rule.explains:
            found += f"Explains: {', '.join(f'[{other}](#{other})' for other in rule.explains)}.\n\n"
        if rule.thresholds:
            rows = [[f"`{name}.{one.name}`", f"{one.default:g}", one.meaning] for one in rule.thresholds]
            found += table(["threshold", "default", "meaning"], rows) + "\n"
        found += f"```sql\n{rule.sql.strip()}\n```\n"
    return found


PAGES: dict[str, Callable[[], str]] = {
    "tables.md": tables_page,
    "commands.md": commands_page,
    "settings.md": settings_page,
    "http.md": http_page,
    "rules.md": rules_page,
    "situations.md": situations_page,
}


def main() -> int:
    stale = [name for name, page in PAGES.items() if not is_fresh(REFERENCE / name, page())]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/reference/{name} is stale; run: make docs", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (REFERENCE / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


def is_fresh(path: Path, page: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == page


if __name__ == "__main__":
    sys.exit(main())

"""The `probe` command: tells endpoints from commands, loads the one command it needs, reports every error.

Imports click and nothing heavier: `probe --help` answers in under 0.2 s.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

import click

from probe_agent import __version__
from probe_agent.errors import BadRequest, ProbeError

from . import commands
from .endpoint import ThisHost, of_job
from .messages import report_bug
from .options import rank_set
from .session import Session, remark

__all__ = ["cli", "main"]

HELP = """Live answers from a running training job: stacks, timings, SQL and eval by PID, no restart.

\b
  probe ENDPOINT COMMAND …          one target
  probe -t ENDPOINT [-t …] COMMAND  several at once
  probe -t ENDPOINT --all COMMAND   every rank of its job
  probe COMMAND                     $PROBE_ENDPOINT, or the only target on this host

ENDPOINT is a PID, host:port, host:port/RANK, host:port/JOB, host:port/JOB/RANK, [::1]:port, https://host:port,
unix:/path, or the folder that a target has left. A list of hosts is node[01-64]:port, @FILE (one a line), slurm:port
(the hosts of this SLURM job) or dns:NAME:port (every address of a headless Kubernetes service).

\b
Exit codes: 0 fine, 1 the answer is an error, 2 usage, 3 some targets did not answer, 4 none could be reached;
`compare` has more of its own.
"""


class CommandGroup(click.Group):
    """Finds commands in the folder `commands/`, and takes an endpoint in front of a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return commands.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return commands.load(cmd_name) if cmd_name in commands.names() else None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, because click would make it exit code 1: `probe … | head` is no error
            _drop_stdout()
            return 0

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._endpoint_as_option(ctx, list(args)))

    def _endpoint_as_option(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`123 query …` becomes `-t 123 query …`; what follows an endpoint must be a command."""
        _, rest, _ = self.make_parser(ctx).parse_args(list(args))
        if not rest or rest[0] in commands.names():
            return args
        options, (first, *others) = args[: len(args) - len(rest)], rest
        from .cluster.ranks.discover import endpoints_of

        try:
            endpoints_of(first)
        except BadRequest as refusal:
            near = commands.near(first)
            if near:
                raise click.UsageError(f"{first!r} is no command; did you mean {near}", ctx) from None
            raise click.UsageError(
                f"{first!r} is no command, and as an endpoint: {refusal.message}\n{refusal.hint}", ctx
            ) from None
        _, follows, _ = self.make_parser(ctx).parse_args(list(others))
        if follows and follows[0] not in commands.names():
            near = commands.near(follows[0])
            raise click.UsageError(f"{follows[0]!r} is no command" + (f"; did you mean {near}" if near else ""), ctx)
        if not others:
            raise click.UsageError(f"what shall I ask {first}? For example: probe {first} backtrace", ctx)
        return [*options, "-t", first, *others]


@click.group(
    cls=CommandGroup,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="[ENDPOINT] COMMAND [ARGS]…",
)
@click.option("-t", "--target", "targets", multiple=True, metavar="ENDPOINT", help="A target; may be repeated.")
@click.option("--all", "everyone", is_flag=True, help="All ranks of the job, on whatever hosts; its store tells where.")
@click.option("--rank", "ranks", callback=rank_set, metavar="RANKS", help="Only these ranks of the job: 0,4-7.")
@click.option("--job", metavar="JOB", help="The job whose name (see: probe list) begins so, where there are several.")
@click.option("--require-all", is_flag=True, help="When some do not answer, show nothing and exit with 3.")
@click.option("--no-inject", is_flag=True, help="Never attach to a process that has no agent.")
@click.option("--itself", is_flag=True, help="Ask a launcher (torchrun, …) itself, not what it has started.")
@click.version_option(__version__, "-V", "--version", prog_name="probe")
@click.pass_context
def cli(
    ctx: click.Context,
    targets: tuple[str, ...],
    everyone: bool,
    ranks: frozenset[int],
    job: str | None,
    require_all: bool,
    no_inject: bool,
    itself: bool,
) -> None:

    from .cluster.ranks.discover import endpoints_of, split

    _name_unknown_variables()
    texts = targets or split(os.environ.get("PROBE_ENDPOINT", ""))
    named = tuple(dict.fromkeys(endpoint for text in texts for endpoint in endpoints_of(text)))
    if job is not None:
        named = tuple(of_job(endpoint, job) for endpoint in named or (ThisHost(),))
    ctx.obj = Session(
        named, inject=not no_inject, everyone=everyone, ranks=ranks, require_all=require_all, itself=itself
    )


def _name_unknown_variables() -> None:
    """A misspelt variable must not look like one that was heeded."""
    if any(name.startswith("PROBE_") for name in os.environ):
        from probe_agent.recorder.config import unknown_variables  # a door: the one list of all variables

        for problem in unknown_variables(os.environ):
            remark(f"probe: {problem.message}\ntry: {problem.hint}")


def main() -> NoReturn:
    """The console script `probe`."""
    # A short run that mostly imports: collecting garbage in the middle of it costs 10 % and finds nothing.
    gc.set_threshold(100_000)
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run one command line and say how it went; nothing is raised, whatever happens."""
    try:
        code = cli.main(args, prog_name="probe", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ProbeError as error:
        print(f"probe: {error.message}" + (f"\ntry: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as bug:  # noqa: BLE001  # the border to the user: no traceback of ours gets past it
        return report_bug(bug)


def _drop_stdout() -> None:
    """Whoever read us has gone: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""The `probe` command: tells endpoints from commands, loads the one command it needs, reports every error.

Imports click and nothing heavier: `probe --help` answers within 0.1 s.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

import click

from probe_agent import __version__
from probe_agent.errors import BadRequest, ProbeError
from probe_agent.recorder.config import unknown_variables

from . import commands
from .cluster.ranks.discover import endpoints_of, split
from .endpoint import Report, ThisHost, of_job
from .messages import error_text, print_error, print_usage_error, remark, report_bug
from .options import rank_set
from .progress import silence

__all__ = ["cli", "main"]

HELP = """Live answers from a running training job: stacks, timings, SQL and eval by PID, no restart.

\b
  probe ENDPOINT                    its status on one screen
  probe ENDPOINT COMMAND …          one target
  probe -t ENDPOINT [-t …] COMMAND  several at once
  probe -t ENDPOINT --all COMMAND   every rank of its job
  probe COMMAND                     $PROBE_ENDPOINT, or the only target here

ENDPOINT is a PID, host:port, host:port/RANK, host:port/JOB, host:port/JOB/RANK, [::1]:port, https://host:port,
unix:/path, the folder of a target that has ended, or the file of a report. A list of hosts is node[01-64]:port,
@FILE (one a line), slurm:port (the hosts of this SLURM job) or dns:NAME:port (every address of a headless Kubernetes
service).

\b
Exit codes:
  0  success
  1  the answer is an error
  2  wrong usage
  3  some targets did not answer
  4  no target could be reached
`compare` has more of its own.
"""


#: Where the arguments of the command are while the group's own function runs.
_ARGUMENTS = "probe.arguments"


class CommandGroup(click.Group):
    """Finds commands in the folder `commands/`, and takes an endpoint in front of a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return commands.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return commands.load(cmd_name) if cmd_name in commands.SHORT_HELP else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(commands.SHORT_HELP.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, because click would make it exit code 1: `probe … | head` is no error
            _drop_stdout()
            return 0

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = super().parse_args(ctx, self._endpoint_as_option(ctx, list(args)))
        ctx.meta[_ARGUMENTS] = list(words)
        return words

    def _endpoint_as_option(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`123 query …` becomes `-t 123 query …`; what follows an endpoint must be a command."""
        _, rest, _ = self.make_parser(ctx).parse_args(list(args))
        if not rest or rest[0] in commands.SHORT_HELP:
            return args
        options, (first, *others) = args[: len(args) - len(rest)], rest
        try:
            endpoints_of(first)
        except BadRequest as refusal:
            if near := _near(first):
                raise BadRequest(f"{first!r} is not a command", near) from None
            if refusal.message != f"{first!r} is not an endpoint":  # it says more
                raise
            raise BadRequest(f"{first!r} is neither a command nor an endpoint", refusal.hint) from None
        _, follows, _ = self.make_parser(ctx).parse_args(list(others))
        if follows and follows[0] not in commands.SHORT_HELP:
            raise BadRequest(f"{follows[0]!r} is not a command", _near(follows[0]) or "list the commands: probe --help")
        return [*options, "-t", first, *(others or ["status"])]


def _near(word: str) -> str:
    from .suggest import near  # a door: only a word that is no command needs it, and the wire's suggestions

    return near(word)


@click.group(
    cls=CommandGroup,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="[ENDPOINT] COMMAND [ARGS]…",
)
@click.option(
    "-t", "--target", "targets", multiple=True, metavar="ENDPOINT", help="A target; may be given several times."
)
@click.option("--all", "everyone", is_flag=True, help="All ranks of the job, on all its hosts.")
@click.option("--rank", "ranks", callback=rank_set, metavar="RANKS", help="Only these ranks of the job: 0,4-7.")
@click.option("--job", metavar="JOB", help="Only the job whose name begins with JOB (see: probe list).")
@click.option("--require-all", is_flag=True, help="Show nothing and exit with 3 unless all answer.")
@click.option("--no-inject", is_flag=True, help="Never attach to a process without a recorder.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress on stderr.")
@click.option("--itself", is_flag=True, help="Ask a launcher (torchrun, …) itself, not its processes.")
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
    quiet: bool,
    itself: bool,
) -> None:
    from .session import Session, stored_output  # a door: HTTP and the cluster, which no help text needs

    if quiet:
        silence()
    # A misspelt variable must not look like one that was heeded.
    for problem in unknown_variables(os.environ):
        remark(error_text(problem.message, problem.hint))
    texts = targets or split(os.environ.get("PROBE_ENDPOINT", ""))
    named = tuple(dict.fromkeys(endpoint for text in texts for endpoint in endpoints_of(text)))
    if any(isinstance(endpoint, Report) for endpoint in named):
        code = stored_output(named, str(ctx.invoked_subcommand), ctx.meta[_ARGUMENTS])
        if code is not None:
            ctx.exit(code)
    if job is not None:
        named = tuple(of_job(endpoint, job) for endpoint in named or (ThisHost(),))
    ctx.obj = Session(
        named, inject=not no_inject, everyone=everyone, ranks=ranks, require_all=require_all, itself=itself
    )


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
    """Run one command line and return its exit code; nothing is raised, whatever happens."""
    try:
        code = cli.main(args, prog_name="probe", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ProbeError as error:
        print_error(error)
        return error.exit_code
    except click.ClickException as error:
        print_usage_error(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as bug:  # noqa: BLE001  # the border to the user: no traceback of ours gets past it
        return report_bug(bug)


def _drop_stdout() -> None:
    """The reader has gone: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

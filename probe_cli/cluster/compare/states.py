"""What a comparison may come to, and the exit code that says so: the help of `compare` is made from it."""

from __future__ import annotations

__all__ = ["EXIT_CODES", "NO_ANSWER", "help_text"]

#: State of a verdict -> exit code and meaning.
EXIT_CODES = {
    "nobody": (0, "nothing stands out, by as much evidence as a name takes"),
    "not enough data": (1, "not enough data to tell"),
    "stands out": (5, "a rank, several, a stage, a host or a group is named"),
    "rotates": (6, "ranks wait for each other, but never long for the same one"),
    "hangs": (7, "the job hangs"),
}
#: As for every command: who did not answer comes before all but a hang.
NO_ANSWER = {3: "some ranks did not answer", 4: "none could be reached"}


def help_text() -> str:
    """One line a code, as the help of `compare` has them."""
    meanings = {**{code: meaning for code, meaning in EXIT_CODES.values()}, **NO_ANSWER}
    return "\n".join(f"  {code}  {meaning}" for code, meaning in sorted(meanings.items()))

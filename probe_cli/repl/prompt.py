"""Whole statements from a terminal, with history, several lines and completion.

Imported on a terminal alone: the door to prompt_toolkit.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from probe_cli.messages import state_folder

from .lines import is_complete

__all__ = ["typed"]

#: The words a line as far as it is typed could go on with.
Complete = Callable[[str], Awaitable[tuple[str, ...]]]


class TargetCompleter(Completer):
    """Asks the target; its own names are the ones worth completing."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> list[Completion]:
        return []

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        line = document.current_line_before_cursor
        word = line[len(line.rstrip("".join(filter(_in_word, set(line))))) :] if line else ""
        for match in await self._complete(line):
            yield Completion(match, start_position=-len(word))


async def typed(complete: Complete) -> AsyncIterator[str]:
    """Statements as they are typed, until the input ends."""
    keys = KeyBindings()
    multiline = Condition(lambda: True)

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.apply_completion(buffer.complete_state.current_completion)
        elif not buffer.document.is_cursor_at_the_end or not is_complete(buffer.text):
            indent = buffer.document.leading_whitespace_in_current_line
            opens = buffer.document.current_line_before_cursor.rstrip().endswith(":")
            buffer.insert_text("\n" + indent + ("    " if opens else ""))
        else:
            buffer.validate_and_handle()

    prompts: PromptSession[str] = PromptSession(
        history=FileHistory(os.path.join(state_folder(), "history")),
        completer=TargetCompleter(complete),
        complete_while_typing=False,
        multiline=multiline,
        key_bindings=keys,
        prompt_continuation="... ",
    )
    while True:
        try:
            text = await prompts.prompt_async(">>> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip():
            yield text.rstrip()


def _in_word(character: str) -> bool:
    return character.isidentifier() or character.isdigit() or character == "."

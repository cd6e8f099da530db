"""`probe … top`: a job on one screen, from look to look.

    look.py      what is asked of each rank, and what it has answered
    text.py      an answer as cells, sparklines and sentences
    app.py       the screen
    detail.py    the screen of one rank

Runs in the CLI. A look is one query to each rank for what it has recorded, and one for its current line.
"""

__all__: list[str] = []

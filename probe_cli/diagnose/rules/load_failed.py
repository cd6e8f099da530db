"""A checkpoint could not be loaded, or does not fit the model.

Keys that are missing or unexpected and shapes that differ mean that the file is of another model, or that a wrapper
(DDP, torch.compile, FSDP) has put a prefix before the names. A path that does not exist may have been caught: the job
then trains from its beginning. So does a job whose checkpoint fits in no key, if it loads with strict=False.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT step, error, path, 'load' AS source FROM python.checkpoints WHERE kind = 'load' AND error IS NOT NULL
UNION ALL BY NAME
SELECT step, concat(type, ': ', message) AS error, concat(file, ':', lineno) AS path, 'exception' AS source
FROM python.exceptions
WHERE message LIKE '%loading state_dict%' OR message LIKE '%issing key(s) in state_dict%'
   OR message LIKE '%size mismatch for %' OR message LIKE '%loaded state dict%' OR message LIKE '%nvalid magic number%'
   OR message LIKE '%PytorchStreamReader%' OR message LIKE '%Weights only load failed%'
   OR (type LIKE '%FileNotFoundError' AND regexp_matches(message, '\\.(pt|pth|ckpt|bin|safetensors)'))
LIMIT 20
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    for row in rows[:1]:
        text = " ".join(row["error"].split())
        yield Finding(
            f"a checkpoint could not be loaded: {_why(text)}",
            Certainty.LIKELY if "loaded nothing" in text else Certainty.CERTAIN,  # the job may have tried another way
            share=1.0 if row["source"] == "exception" else 0.5,
            since_step=row["step"] if row["step"] >= 0 else None,
            evidence=(text[:400], f"at {row['path'] or 'an object without a path'}"),
            advice=_advice(text),
            try_first=_first(text, (row["path"] if row["source"] == "load" else None) or "."),
        )


def _why(text: str) -> str:
    if "size mismatch" in text:
        return "shapes differ"
    if "loaded nothing" in text:
        return "none of its keys are the model's, which strict=False passes over"
    if "state_dict" in text or "key(s)" in text:
        return "the keys do not match the model"
    if "FileNotFound" in text or "No such file" in text:
        return "the file does not exist"
    if "weights only" in text.lower():
        return "it holds objects that torch does not load by default"
    return "it cannot be read"


def _first(text: str, path: str) -> str:
    if "loaded nothing" in text:
        return "model.load_state_dict(saved['model'])  # strict: it raises where a key does not fit"
    return "model.load_state_dict(saved['model'], strict=False)" if "state_dict" in text else f"ls -la {path}"


def _advice(text: str) -> tuple[str, ...]:
    if "state_dict" in text or "size mismatch" in text:
        return (
            "build the model with the configuration that the checkpoint was made with",
            "take prefixes away: 'module.' of DDP, '_orig_mod.' of torch.compile; save model.module.state_dict()",
            "load a part on purpose: strict=False, and look at the missing and unexpected keys that it returns",
        )
    if "weights only" in text.lower():
        return ("torch.load(path, weights_only=False) for a file that you trust", "save state_dicts instead of objects")
    return (
        "check the path on this host, and that the save had ended before",
        "write to another name first, and rename: a save that was cut off leaves a file that cannot be read",
    )


RULE = Rule("load-failed", "checkpoints", "Could all checkpoints be loaded?", SQL, of_each_rank(judge))

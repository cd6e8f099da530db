"""The optimizer holds other parameters than the model's.

The parameters of the model that ask for a gradient are more than those that all optimizers hold: a layer that was added
or replaced after the optimizer was made, a list that was left out. Or layers are in a plain list or dict of the model,
where torch does not find them: they get gradients, and no optimizer holds them. Or the optimizers hold as many, but of
another model: none of theirs has a gradient or changes, and parameters that no optimizer holds have one; of those that
were changed before, as in a pretrained model or one whose layers were replaced as it trained, a second look tells. Or
they hold the parameters of a layer that is no part of the model any more. Where an optimizer has shards or copies in
their place, as with DeepSpeed's ZeRO, or ranks share the parameters out among their optimizers, nothing is said; nor of
parameters without a gradient that the job changes in each step, such as those of a copy that follows the model; nor
where none that is left out has a gradient: a layer that is added to the optimizer when the model grows that far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import Client
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT modules.*, optimizers.*, gradients.* FROM (
    SELECT any_value(module) AS module, sum(trainable) AS trainable, count(*) AS models,
        sum(parameters) AS all_parameters
    FROM torch.modules WHERE depth = 0 AND (  -- a LightningModule is not called itself, only what it holds
        module IN (SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'backward')
        OR module IN (SELECT split_part(module, '.', 1) FROM torch.parameters WHERE has_gradient))
) AS modules, (
    SELECT sum(parameters) AS held, count(*) AS param_groups, any_value(optimizer) AS optimizer,
        (SELECT sum(parameters) FROM torch.parameters WHERE optimizer IS NOT NULL AND trainable) AS held_once,
        sum(num_tensors) AS tensors, max(world_size) AS world_size
    FROM torch.optimizers
) AS optimizers, (
    SELECT count(*) FILTER (optimizer IS NULL AND has_gradient) AS astray,
        any_value(split_part(module, '.', 1)) FILTER (optimizer IS NULL AND has_gradient) AS astray_of,
        any_value(module) FILTER (optimizer IS NULL AND has_gradient) AS astray_in,
        sum(parameters) FILTER (optimizer IS NULL AND has_gradient) AS num_astray,
        count(*) FILTER (module IS NULL AND NOT has_gradient AND updates IS NULL) AS left_over,
        count(*) FILTER (hidden AND optimizer IS NULL AND has_gradient) AS num_hidden,
        sum(parameters) FILTER (hidden AND optimizer IS NULL AND has_gradient) AS hidden_values,
        min(concat_ws('.', module, parameter)) FILTER (hidden AND optimizer IS NULL AND has_gradient) AS hidden_in,
        sum(parameters) AS all_values,
        coalesce(sum(parameters) FILTER (optimizer IS NULL AND NOT has_gradient AND module IS NOT NULL
            AND versions >= greatest(16, 0.5 * steps_seen)), 0) AS by_hand,
        list(DISTINCT module ORDER BY module) FILTER (optimizer IS NULL AND module IS NOT NULL) AS lacking,
        list(concat_ws('.', module, parameter)) FILTER (optimizer IS NULL AND module IS NOT NULL) AS lacking_each,
        count(*) FILTER (optimizer IS NOT NULL AND (has_gradient OR updates > 0)) AS alive,
        count(*) FILTER (optimizer IS NOT NULL AND has_gradient) AS with_gradient,
        count(*) FILTER (optimizer IS NOT NULL AND versions > 8) AS changed,
        count(*) FILTER (optimizer IS NULL AND module IS NOT NULL AND has_gradient IS DISTINCT FROM false) AS in_use,
        any_value(split_part(module, '.', 1)) FILTER (optimizer IS NOT NULL) AS held_of, max(steps_seen) AS steps,
        count(*) FILTER (optimizer IS NOT NULL AND module IS NOT NULL) AS held_of_models
    FROM (SELECT *, registered IS NOT NULL AND NOT registered AS hidden FROM torch.parameters WHERE trainable)
) AS gradients
"""


#: Put twice, for a job whose optimizer has no gradients but parameters that were changed at some time.
CHANGES = """
SELECT coalesce(sum(versions) FILTER (optimizer IS NOT NULL), 0), max(steps_seen) FROM torch.parameters WHERE trainable
"""
#: Steps between the two, and how long they are waited for.
BETWEEN_STEPS, PAUSE_S, NUM_LOOKS = 3, 0.4, 8


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    each = [set(row["lacking_each"] or ()) for one in asked for row in one.rows]
    is_shared_out = len(each) > 1 and any(each) and not set.intersection(*each)
    return of_each_rank(partial(_judge_one, is_shared_out))(asked, limits)


def _judge_one(is_shared_out: bool, rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["models"] or not row["param_groups"]:
        raise NotApplicable("no model was seen in a backward, or no optimizer of torch was found")
    if row["astray"] and not row["alive"] and row["steps"] >= limits["steps"]:
        found = _of_another_model(row)
        # Before the recorder came, or by an optimizer that leaves no gradient and counts no updates.
        yield replace(found, certainty=Certainty.SUSPECTED) if row["changed"] else found
        return
    if row["num_hidden"] and row["alive"] and row["steps"] >= limits["steps"]:
        yield _of_a_plain_list(row)
        return
    if row["astray"] and row["left_over"] and row["steps"] >= limits["steps"]:
        yield _of_a_layer_that_is_gone(row)
        return
    if row["astray"] and not row["with_gradient"] and row["steps"] >= limits["steps"]:
        # Updated until the model was replaced, or just between the clearing of its gradients and the next backward.
        yield replace(_of_another_model(row), certainty=Certainty.SUSPECTED)
    held, trainable = row["held"], row["trainable"]
    if row["astray"] and row["alive"] and row["param_groups"] > 1 and row["held_once"]:
        held = min(held, row["held_once"])  # two optimizers may hold the same parameters
    if row["models"] > 1 or held + row["by_hand"] >= trainable or (row["with_gradient"] and not row["in_use"]):
        return
    if not row["tensors"] or (not row["held_of_models"] and held * (row["world_size"] or 1) >= trainable):
        raise NotApplicable("the optimizer has shards or copies of the parameters in their place, as with ZeRO")
    if is_shared_out:
        raise NotApplicable("each parameter is in the optimizer of some rank, as with ZeRO by hand")
    lacking = row["lacking"] or []
    more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
    yield Finding(
        f"{percent(1 - held / trainable)} of {row['module']}'s trainable parameters are in no optimizer"
        if held
        else f"none of {row['module']}'s trainable parameters are in an optimizer",
        Certainty.LIKELY,
        share=1 - held / trainable,
        where=lacking[0] if held and len(lacking) == 1 else row["module"],
        evidence=(
            f"trainable parameters: {trainable:,}; held by {row['optimizer']}: {held:,}",
            *([f"in none: {', '.join(lacking[:4])}{more}"] if held and lacking else []),
        ),
        advice=(
            "make the optimizer after the last change of the model: replaced heads, added adapters, .to() of a copy",
            "freeze on purpose what is not to be trained: requires_grad_(False)",
        ),
        try_first='probe PID eval "[n for n, p in model.named_parameters() if p.requires_grad and all(p is not q for'
        " g in optimizer.param_groups for q in g['params'])][:10]\"",
    )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """Confirm that no parameter of the optimizer changes while the job takes steps."""
    told = []
    for one in found:
        rank = one.ranks[0]
        if one.certainty is Certainty.SUSPECTED and await job.once(f"changes of {rank}", partial(_changes, job, rank)):
            continue
        told.append(replace(one, certainty=Certainty.LIKELY))
    return told


async def _changes(job: Job, rank: int) -> bool:
    async def count(client: Client) -> Sequence[int]:
        request = QueryRequest(CHANGES, timeout_s=job.timeout_s)
        rows = (await client.send(QueryResult, "POST", "/v1/query", request)).rows
        return [int(str(value)) for value in rows[0]]

    seen: list[Sequence[int]] = []
    for _ in range(NUM_LOOKS):
        seen += (await job.ask(count, job.endpoints_of([rank])[:1])).values()
        if seen and seen[-1][1] - seen[0][1] >= BETWEEN_STEPS:
            return seen[-1][0] != seen[0][0]
        await asyncio.sleep(PAUSE_S)
    raise NoEvidence("the job took no steps between two looks at its parameters: ask again later")


def _of_a_layer_that_is_gone(row: Row) -> Finding:
    return Finding(
        f"{row['optimizer']} holds parameters that are in no model, and {row['astray_in']} is in no optimizer",
        Certainty.LIKELY,
        share=min(1.0, row["num_astray"] / row["trainable"]) if row["trainable"] else None,
        where=row["astray_in"],
        evidence=(
            f"{row['astray']} tensors have a gradient and are in no optimizer",
            f"{row['left_over']} tensors of {row['optimizer']} have no module, no gradient, and were never updated",
        ),
        advice=("make the optimizer after the last change of the model: a replaced head, an added adapter",),
        try_first="optimizer = torch.optim.Adam(model.parameters())",
    )


def _of_a_plain_list(row: Row) -> Finding:
    held = row["hidden_in"].partition("[")[0]
    return Finding(
        f"layers in a plain list or dict, {held}, get gradients and are in no optimizer",
        Certainty.LIKELY,
        share=row["hidden_values"] / row["all_values"] if row["all_values"] else None,
        where=held,
        evidence=(
            f"{row['num_hidden']} tensors with {row['hidden_values']:,} values, {row['hidden_in']} the first:"
            " parameters() and state_dict() of the model leave them out, so no checkpoint has them",
        ),
        advice=(
            "keep them in torch.nn.ModuleList, ModuleDict or ParameterList, and make the optimizer after that",
            "if they are not to be trained: requires_grad_(False) saves their gradients",
        ),
        try_first=f"self.{held.rpartition('.')[2]} = torch.nn.ModuleList(...)",
    )


def _of_another_model(row: Row) -> Finding:
    of = "of a model that is gone" if row["held_of"] is None else f"of {row['held_of']}"
    return Finding(
        f"{row['optimizer']} holds the parameters {of}, and gradients go to those of {row['astray_of']}",
        Certainty.LIKELY,
        share=1.0,
        where=row["astray_of"],
        evidence=(
            f"no parameter of {row['optimizer']} has a gradient, and none is changed ({row['steps']:,} steps seen)",
            f"{row['astray']} tensors of {row['astray_of']} have a gradient and are in no optimizer",
        ),
        advice=("make the optimizer with the parameters of the model that is called, after its last change",),
        try_first="optimizer = torch.optim.Adam(model.parameters())",
    )


RULE = Rule(
    "parameters-without-optimizer",
    "numbers",
    "Does the optimizer hold the model's parameters?",
    SQL,
    judge,
    (Threshold("steps", 20, "steps needed to tell that the optimizer's parameters never change"),),
    explains=(
        "loss-flat",
        "loss-at-chance",
        "loss-rises",
        "zero-grad-missing",
        "parameters-not-updated",
        "gradients",
        "schedule",
    ),
    is_live=True,
    look=look,
)

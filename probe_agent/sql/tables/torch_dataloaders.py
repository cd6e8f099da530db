"""`torch.dataloaders`: the data loaders of each target."""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.recorder_table import STEP, RecorderTable

__all__ = ["DataLoaders"]


class DataLoaders(RecorderTable):
    name = "torch.dataloaders"
    doc = "The DataLoaders that the training's frames and globals lead to, taken when the query runs."
    operation = "dataloaders"
    columns = (
        STEP,
        Column("loader", "text", "", "its class"),
        Column("place", "text", "", "where it was found; without a name (for x in DataLoader(…)) by its newest batch"),
        Column("dataset", "text", "", "class of the dataset"),
        Column("batch_size", "int", "", "samples a batch; NULL where the sampler decides"),
        Column("num_workers", "int", "", "worker processes it starts; 0: batches are made on the training thread"),
        Column("workers", "int", "", "processes it keeps now; only one with persistent workers knows"),
        Column("prefetch_factor", "int", "", "batches each worker makes ahead"),
        Column("pin_memory", "bool", "", "batches are copied to pinned memory"),
        Column("persistent_workers", "bool", "", "the workers live on after an epoch"),
        Column("drop_last", "bool", "", "an incomplete last batch is left out"),
        Column("in_order", "bool", "", "batches come in order; NULL before torch 2.6"),
        Column("timeout", "float", "s", "how long it waits for a batch; 0 is for ever"),
        Column("sampler", "text", "", "class of the sampler"),
        Column("collate_fn", "text", "", "what makes a batch of samples"),
        Column("worker_init_fn", "text", "", "what each worker calls first"),
        Column("start_method", "text", "", "fork, spawn or forkserver, where it was given"),
    )

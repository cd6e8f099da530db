"""Hugging Face Trainer: a tiny Llama, two micro-batches per step, evaluation every fourth step, logging of every step.

Holds: steps are `global_step`; loss is what Trainer logs; evaluation is not training.
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from truth import Truth

STEPS = 12
truth = Truth(STEPS)
truth.micro_batches = 2
torch.manual_seed(30)
torch.set_num_threads(1)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **sizes))
tokens = torch.randint(256, (120, 48), generator=torch.Generator().manual_seed(31))
rows = [{"input_ids": row, "labels": row} for row in tokens]


class Count(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        print({name: value for name, value in logs.items() if name in ("loss", "eval_loss", "learning_rate")})
        if "loss" in logs:
            truth.step(logs["loss"])


class Clocked(Trainer):
    def compute_loss(self, *args, **kwargs):
        with truth.clock("forward" if self.model.training else "evaluation"):
            return super().compute_loss(*args, **kwargs)


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        eval_strategy="steps",
        eval_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Clocked(model=model, args=arguments, train_dataset=rows[:96], eval_dataset=rows[96:], callbacks=[Count()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
truth.others["global_step"] = trainer.state.global_step
truth.tell(model)

"""Secrets are hidden, and text that only looks like one is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time

import pytest

from probe_agent.recorder.guest.redaction import redacted_command, redacted_text, redacted_value


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train.py --api-key X1", "train.py --api-key ***"),
        ("train.py --token=X1 --lr 0.1", "train.py --token=*** --lr 0.1"),
        ("env FOO_SECRET=X1 python train.py", "env FOO_SECRET=*** python train.py"),
        ("train.py --wandb_api_key X1 --epochs 3", "train.py --wandb_api_key *** --epochs 3"),
        ("train.py -password X1", "train.py -password ***"),
        ("train.py +model.hub_token=X1", "train.py +model.hub_token=***"),
        ("train.py --db postgres://me:X1@db/runs", "train.py --db postgres://***@db/runs"),
        ("train.py --url=https://X1@host/a?b=c", "train.py --url=https://***@host/a?b=c"),
        ("train.py s3://bucket/a?token=X1&part=2", "train.py s3://bucket/a?token=***&part=2"),
        ("train.py --MyPassWord=1234", "train.py --MyPassWord=***"),
        ("train.py --token -X1", "train.py --token ***"),
        ("train.py --no-token --lr 0.1", "train.py --no-token --lr 0.1"),
        ("train.py --tokenizer gpt2 --max-tokens 4096", "train.py --tokenizer gpt2 --max-tokens 4096"),
        ("train.py --num_key_value_heads=8 --use-key true", "train.py --num_key_value_heads=8 --use-key true"),
        ("train.py https://host/a me@host:22", "train.py https://host/a me@host:22"),
        ("python train.py --lr=0.1", "python train.py --lr=0.1"),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(command: str, shown: str) -> None:
    assert redacted_command(command.split(" ")) == shown.split(" ")
    assert redacted_command(shown.split(" ")) == shown.split(" ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("FOO_SECRET='a b c' python train.py", "FOO_SECRET=*** python train.py"),
        ('login(api_key = "X1", user="me")', 'login(api_key = ***, user="me")'),
        ('{"hf_token": "X1", "lr": 0.1}', '{"hf_token": ***, "lr": 0.1}'),
        ("exec train --api-key X1 --lr 1", "exec train --api-key *** --lr 1"),
        ("curl -H 'Authorization: Bearer abcdefgh12'", "curl -H 'Authorization: Bearer ***'"),
        ("https_proxy=http://me:pa@ss@proxy:3128", "https_proxy=http://***@proxy:3128"),
        ("env:API_KEY=X1 a:b:c", "env:API_KEY=*** a:b:c"),
        ("x = 1; for key in d: print(key)", "x = 1; for key in d: print(key)"),
    ],
)
def test_a_text_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert redacted_text(text) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("AWS_SECRET_ACCESS_KEY", "X1", "***"),
        ("HF_TOKEN", "X1", "***"),
        ("DB_PASSWD", "1234", "***"),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("SSH_KEY", "", ""),
        ("HTTP_PROXY", "http://me:X1@proxy:3128/", "http://***@proxy:3128/"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
    ],
)
def test_a_variable_is_shown_without_its_secret(name: str, value: str, shown: str) -> None:
    assert redacted_value(name, value) == shown


@pytest.mark.parametrize("piece", ["a", "a.", "a-", "a:", "key ", "key=", "--key ", "a://", "a@", " ", "'", "bearer "])
def test_it_is_quick_on_whatever_the_kernel_lets_through(piece: str) -> None:
    long = (piece * (1 << 17))[: 1 << 17]

    with faster_than(5.0):
        redacted_command([long, "--key", long, f"--token={long}"])


@contextmanager
def faster_than(seconds: float) -> Iterator[None]:
    """Compare CPU times, which a busy machine does not stretch."""
    began = process_time()
    yield
    assert process_time() - began < seconds

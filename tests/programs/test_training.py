"""Real training under the real library: the weights come out the same, to the last bit."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
RUN_LIMIT_S = 120.0

Run = subprocess.CompletedProcess[str]


def train(session: Any, script: str, *, preload: bool) -> Run:
    """Run a training script on the dataset; it must succeed."""
    command = [sys.executable, str(HERE / script), str(session.source)]
    done: Run = session.run(command, preload=preload, timeout=RUN_LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done


def assert_it_learnt(transcript: str) -> None:
    """Fails unless the weights changed and the loss fell: only then do they show wrong bytes."""
    lines = [line.split() for line in transcript.splitlines()]
    digests = [words[1] for words in lines if words[0] in ("start", "end")]
    losses = [float.fromhex(words[2]) for words in lines if words[0] == "loss"]
    assert len(set(digests)) == 2
    assert len(losses) == 2
    assert losses[1] < losses[0]


@pytest.mark.parametrize(
    ("script", "modules"),
    [
        pytest.param("train_torch.py", ("torch", "numpy", "PIL"), id="torch"),
        pytest.param("train_tensorflow.py", ("tensorflow", "PIL"), id="tensorflow"),
    ],
)
def test_training_ends_with_the_same_weights(
    shared_session: Any, script: str, modules: tuple[str, ...]
) -> None:
    """Without the library; from cold, so that the copies appear meanwhile; and from copies."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    plain = train(shared_session, script, preload=False)
    assert_it_learnt(plain.stdout)
    shared_session.forget()
    cold = train(shared_session, script, preload=True)
    shared_session.wait_all_present()
    before = shared_session.source_counts()
    warm = train(shared_session, script, preload=True)
    after = shared_session.source_counts()
    assert (cold.stdout, cold.stderr) == (plain.stdout, plain.stderr)
    assert (warm.stdout, warm.stderr) == (plain.stdout, plain.stderr)
    assert (after["open"], after["read"]) == (before["open"], before["read"])

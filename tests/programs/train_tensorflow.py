"""Trains a small network on the images of a dataset through tf.data, always the same way.

Writes the loss of every epoch, and a digest of the weights before and after the training. The model
is only two matrices and a gradient tape, because the tests are about the input pipeline.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from reader_kit import Transcript

EPOCHS = 2
SEED = 1234
SIDE = 12  # the images are shrunk to squares of this size [pixels]
HIDDEN = 24


def make_batches(tf: Any, root: Path) -> tuple[Any, int]:
    """Returns a dataset of batches (float32 (n, SIDE * SIDE * 3), int32 (n,)), and the number of
    classes."""
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    samples = [(str(p), number) for number, c in enumerate(classes) for p in (root / c).iterdir()]
    names, labels = zip(*sorted(samples), strict=True)

    def load(name: Any, label: Any) -> tuple[Any, Any]:
        image = tf.io.decode_image(tf.io.read_file(name), channels=3, expand_animations=False)
        image.set_shape((None, None, 3))
        small = tf.image.resize(tf.cast(image, tf.float32) / 255, (SIDE, SIDE))
        return tf.reshape(small, (-1,)), label

    data = tf.data.Dataset.from_tensor_slices((list(names), list(labels)))
    data = data.shuffle(len(names), seed=SEED).map(load, num_parallel_calls=2, deterministic=True)
    return data.batch(16).prefetch(2), len(classes)


def weights_digest(weights: list[Any]) -> str:
    """Returns the SHA-256 of all weights in their order."""
    return hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()


def train(tf: Any, root: Path, out: Transcript) -> None:
    """Trains on `root`/images, and records the losses and the digests of the weights."""
    tf.random.set_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    # With several threads, the rounding of a sum would depend on how the threads split the sum.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    batches, classes = make_batches(tf, root / "images")
    features = SIDE * SIDE * 3
    weights = [
        tf.Variable(tf.random.stateless_normal(shape, (SEED, number), stddev=0.05))
        for number, shape in enumerate([(features, HIDDEN), (HIDDEN,), (HIDDEN, classes)])
    ]

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(images @ weights[0] + weights[1])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden @ weights[2])
            loss = tf.reduce_mean(losses)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    out.line("start", weights=weights_digest(weights))
    for epoch in range(EPOCHS):
        losses = [float(step(images, labels)) for images, labels in batches]
        out.line("loss", epoch=epoch, mean=(sum(losses) / len(losses)).hex())
    out.line("end", weights=weights_digest(weights))

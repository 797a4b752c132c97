"""python dali_orders.py DIRECTORY CASES: prints the samples that DALI's readers deliver, as JSON.

This is a separate program so that the tests' process does not load DALI or start its threads.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

SAMPLES = 23


def make(root: Path) -> None:
    """Writes SAMPLES files, and one TFRecord file with an index; each sample contains its
    number."""
    (root / "files" / "class").mkdir(parents=True)
    records, index, at = [], [], 0
    for number in range(SAMPLES):
        (root / "files" / "class" / f"{number:03}.jpg").write_bytes(b"%03d" % number)
        # The bytes that protobuf writes for a tf.train.Example with one bytes feature, "n".
        feature = b"\n\x05\n\x03%03d" % number
        entry = b"\n\x01n\x12" + bytes([len(feature)]) + feature
        features = b"\n" + bytes([len(entry)]) + entry
        example = b"\n" + bytes([len(features)]) + features
        records.append(struct.pack("<QI", len(example), 0) + example + bytes(4))
        index.append(f"{at} {len(records[-1])}\n")
        at += len(records[-1])
    (root / "a.tfrecord").write_bytes(b"".join(records))
    (root / "a.idx").write_text("".join(index))


def run(root: Path, kind: str, delivered: int, options: dict[str, Any]) -> list[int]:
    from nvidia.dali import fn, pipeline_def, tfrecord

    def define() -> Any:
        if kind == "file":
            return fn.readers.file(file_root=str(root / "files"), **options)[0]
        features = {"n": tfrecord.FixedLenFeature((), tfrecord.string, "")}
        paths = {"path": str(root / "a.tfrecord"), "index_path": str(root / "a.idx")}
        return fn.readers.tfrecord(features=features, **paths, **options)["n"]

    pipeline = pipeline_def(define, batch_size=1, num_threads=1, device_id=None)()
    pipeline.build()
    return [int(pipeline.run()[0].at(0).tobytes()) for _ in range(delivered)]


if __name__ == "__main__":
    where = Path(sys.argv[1])
    make(where)
    print(json.dumps([run(where, *case) for case in json.loads(sys.argv[2])]))

"""Builds the cffi module monarch_py._native. The module's declarations are read from the
preprocessed C headers, so that every struct is declared only once."""

import os
import shlex
import subprocess
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent if "__file__" in globals() else Path("csrc").resolve()
SOURCES = [
    "shared/xxh3.c",
    "shared/catalog.c",
    "shared/claims.c",
    "shared/path.c",
    "clients/demands.c",
    "clients/requests.c",
    "publish/writer.c",
    "publish/find.c",
    "publish/publish.c",
    "publish/listing.c",
    "scan/look.c",
    "scan/compare.c",
    "scan/revalidate.c",
    "scan/batch.c",
    "scan/tasks.c",
    "scan/walk.c",
    "scan/scan.c",
    "copy/fill.c",
    "copy/flow.c",
    "serving/open_copy.c",
    "serving/holdings.c",
    "copy/job.c",
    "copy/source_file.c",
    "copy/upkeep.c",
    "copy/from_peer.c",
    "copy/pack.c",
    "engine/entries.c",
    "engine/orders.c",
    "engine/grant.c",
    "handover/handed.c",
    "handover/kept.c",
    "handover/receive.c",
    "engine/schedule.c",
    "engine/fair_queue.c",
    "serving/sums.c",
    "engine/work.c",
    "engine/engine.c",
    "testing/peer_table.c",
    "testing/testing.c",
    "peers/client.c",
    "peers/connection.c",
    "peers/mac.c",
    "peers/peer.c",
    "peers/server.c",
    "plan/shuffle.c",
    "plan/buffer.c",
    "plan/access.c",
    "plan/deal.c",
    "plan/holder.c",
    "plan/digest.c",
    "loaders/kept.c",
    "loaders/reads.c",
    "simulator/filling.c",
    "simulator/links.c",
    "simulator/machine.c",
    "simulator/pfs.c",
    "simulator/ranks.c",
    "simulator/run.c",
    "simulator/source.c",
    "simulator/staging.c",
    "simulator/routes.c",
]
# The headers whose declarations become available in Python.
HEADERS = [
    "native.h",
    "peers/peers.h",
    "serving/serving.h",
    "plan/plan.h",
    "loaders/loaders.h",
    "simulator/simulator.h",
    "testing/testing.h",
]
INCLUDES = "".join(f'#include "{header}"\n' for header in HEADERS)
DEFINES = (
    "MONARCH_MAX_",
    "MONARCH_FILTER",
    "MONARCH_SCAN_HINT",
    "MONARCH_STAT_",
    "MONARCH_COPY_",
    "MONARCH_FILL_",
)
MORE_DEFINES = (
    "MONARCH_MAGIC",
    "MONARCH_VERSION",
    "MONARCH_RANKS",
    "MONARCH_SOURCE_PATH",
    "MONARCH_TIER_PATH",
    "MONARCH_TEXT_UNIT",
    "MONARCH_UNIT",
    "MONARCH_DEMANDS",
    "MONARCH_CLAIMS",
    "MONARCH_CLAIM_HANDED",
    "MONARCH_CLAIM_RECALLED",
    "MONARCH_CLAIM_TICK",
    "MONARCH_HANDOVER_SOCKETS",
    "MONARCH_SHARES",
    "MONARCH_NO_PLACE",
    "MONARCH_ASKED",
)


def declarations() -> str:
    cc = shlex.split(os.environ.get("MONARCH_CC") or os.environ.get("CC", "gcc"))  # as in setup.py
    preprocess = [*cc, "-E", "-P", "-DMONARCH_CDEF", f"-I{HERE}", "-x", "c", "-"]
    text = subprocess.run(
        preprocess, input=INCLUDES, check=True, capture_output=True, text=True
    ).stdout
    constants = []
    for line in (HERE / "shared" / "catalog.h").read_text().splitlines():
        words = line.split()
        if len(words) < 3 or words[0] != "#define" or "(" in words[1]:
            continue
        if words[1].startswith(DEFINES) or words[1] in MORE_DEFINES:
            constants.append(f"#define {words[1]} ...")
    return "\n".join(constants) + "\n" + text


ffi = FFI()
ffi.cdef(declarations())
ffi.set_source(
    "monarch_py._native",
    INCLUDES,
    sources=[f"csrc/{name}" for name in SOURCES],
    depends=[f"csrc/{path.relative_to(HERE)}" for path in sorted(HERE.rglob("*.h"))],
    include_dirs=["csrc"],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=["-O3", "-Wall", "-Wextra", "-Wno-unused-parameter"],
    libraries=["pthread", "dl"],
)

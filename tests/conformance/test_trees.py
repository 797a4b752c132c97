"""Programs that read a prepared tree give the same output with and without the library: every
attribute and every byte, in the same order. Under the library, each program runs twice: first
without copies, so that its reads make the daemon copy the files, then with a copy of every file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from conformance.ground import Ground, said
from conformance.outcomes import difference
from conformance.tools import GIT, MAKE_FILES
from support import draws
from support.session import wait_until

# A shell script that makes the tree. It makes no files for programs that are not installed.
MAKE = f"""
cd "$ROOT/work"
{MAKE_FILES}
if command -v git; then {GIT}
  cp -r tree repository; cd repository; git init -q .; git add -A; git commit -qm one
  for i in 1 2 3 4; do seq $((i * 5000)) >> a/n$i; git commit -qam "more $i"; done
  git gc -q; seq 77 > loose; git add loose; git commit -qm loose; git update-index -q --refresh
  cd ..
fi
if command -v sqlite3; then
  sqlite3 base.db 'create table t(i integer primary key, x text)' 'create index x on t(x)' \
  "with recursive n(i) as (values(1) union all select i+1 from n where i<20000)
   insert into t select i, hex(zeroblob(i%50))||i from n"
fi
tar -cf all.tar tree; tar -czf all.tgz tree; $PYTHON -m zipfile -c all.zip tree
$PYTHON -c '
import random; open("noise", "wb").write(random.Random(1).randbytes(9_000_000))
try:
    import numpy as np
    np.save("a.npy", np.arange(700_000)); np.savez_compressed("b.npz", x=np.arange(9000))
    import h5py
    with h5py.File("c.h5", "w") as file:
        file["plain"] = np.arange(300_000)
        file.create_dataset("packed", data=np.arange(90_000), chunks=True, compression="gzip")
except ImportError:
    pass'
"""
NUMPY = """$PYTHON -c '
import numpy as np
for mode in (None, "r", "c"):
    found = np.load("a.npy", mmap_mode=mode); print(found.sum(), found[::977].tolist())
print(np.load("b.npz")["x"].sum(), np.fromfile("a.npy", "u1").sum())
print(np.memmap("a.npy", "u1", "r", offset=4097).sum())'"""
H5PY = """$PYTHON -c '
import h5py
for driver in ("sec2", "stdio", "core"):
    with h5py.File("c.h5", driver=driver) as file:
        print([(name, int(file[name][()].sum()), str(file[name])) for name in file])'"""
# Reader's name -> the program or module that the reader needs, and the shell script to run. TMPDIR
# is the only place below ROOT to which the scripts write.
READERS = {
    "git_fsck": ("git", "cd repository; git fsck --full --strict; git verify-pack -v .git/objects/"
                 "pack/*.idx | sha256sum; git count-objects -v"),
    "git_log": ("git", "cd repository; git log -p --stat | sha256sum; git archive HEAD | sha256sum;"
                "GIT_OPTIONAL_LOCKS=0 git status; git cat-file --batch-all-objects --batch-check"),
    "git_clone": ("git", 'git clone -q --no-hardlinks repository "$OUT/a"; git -C "$OUT/a" fsck;'
                  'git clone -q "file://$PWD/repository" "$OUT/b"; git -C "$OUT/b" log --oneline'),
    "sqlite": ("sqlite3", "q() { sqlite3 -readonly base.db \"$@\"; }; q 'pragma integrity_check';"
               "q .dump | sha256sum; q 'select count(*),sum(length(x)) from t where x like \"%7\"';"
               "sqlite3 'file:base.db?mode=ro&immutable=1' 'select max(i) from t';"
               "for i in 1 2 3 4; do q 'select sum(i) from t' & done; wait"),
    "tar": ("tar", "tar -cf - --sort=name tree repository noise | sha256sum; tar -df all.tar;"
            "tar -tvzf all.tgz | sha256sum; tar -xOf all.tar tree/a/n7 | wc"),
    "zip": ("python3", "$PYTHON -m zipfile -t all.zip; $PYTHON -m zipfile -l all.zip;"
            "$PYTHON -m tarfile -l all.tgz; $PYTHON -m gzip -d - < all.tgz | sha256sum"),
    "find": ("find", "find . -printf '%p %y %#m %n %u %g %D %i %s %k %b %T@ %C@ %l %S\\n' | sort;"
             "find . -size +20k -newermt 2014-01-01 ! -newermt 2015-01-01 | sort"),
    "ls": ("ls", "ls -laRi --time-style=full-iso .; ls -1U tree/a; ls -sh tree/a"),
    "stat": ("stat", "stat -c '%n %a %b %B %d %f %F %g %h %i %o %s %t %u %W %y %z' tree/a/* noise;"
             "stat -L tree/c/link -c %i; stat -f -c '%T %S %l' noise; stat nothing || true"),
    "rsync": ("rsync", 'rsync -aH tree repository "$OUT/"; rsync -aHcin tree "$OUT/";'
              'diff -r tree "$OUT/tree"; rsync -a --inplace noise "$OUT/"; cmp noise "$OUT/noise"'),
    "cp": ("cp", 'cp -a tree "$OUT/"; cp noise "$OUT/"; cmp noise "$OUT/noise"; cp --sparse=always '
           'noise "$OUT/s"; cmp noise "$OUT/s"; diff -rq tree "$OUT/tree"; du -ab tree | sort'),
    "text": ("grep", "grep -rc 7 tree | sort; wc tree/a/n*; tac tree/a/n9 | sed -n 1,2p; tail -n 3 "
             "tree/a/n40; sort -rn tree/a/n8 | sed -n 3p; cat tree/a/n* | cksum;"
             "od -j 8900000 noise | tail; head -c 70000 noise | md5sum;"
             "split -b 2500000 noise --filter=md5sum"),
    "dd": ("dd", "dd if=noise bs=65537 skip=3 count=9 status=none | md5sum;"
           "dd if=noise of=/dev/null bs=1M 2>&1 | sed -n 1,2p;"
           "(head -c 10; dd bs=5 count=1 status=none; md5sum) < noise | md5sum;"
           "(read -r a; read -r b; cat) < tree/a/n30 | sed -n 1,3p"),
    "numpy": ("numpy", NUMPY),
    "h5py": ("h5py", H5PY),
}  # fmt: skip
MODULES = ("numpy", "h5py")
# The readers that every test run tries: one for each way of accessing files. All other readers run
# only with --long.
SHORT = ("git_log", "sqlite", "tar", "find", "cp", "text", "numpy", "h5py")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    ground = Ground(tmp_path_factory.mktemp("trees"), prefetch="on_demand")
    made = ground.shell(MAKE, library=False, root=ground.source)
    assert made.returncode == 0, made.stderr
    with ground:
        yield ground


def read(ground: Ground, reader: str, library: bool, out: Path) -> str:
    """Runs a reader on the source and returns its output. The reader may write files to `out`,
    which is outside every source."""
    out.mkdir()
    script = READERS[reader][1]
    run = ground.shell(script, library=library, root=ground.source, OUT=str(out))
    shutil.rmtree(out)
    assert run.returncode == 0, run.stderr
    return said(run, ground.source)


def names_in(ground: Ground) -> list[Path]:
    return sorted((ground.source / "work").rglob("*"))


@pytest.mark.parametrize("reader", draws.cases(READERS, short=SHORT))
def test_cold_and_warm(ground: Ground, reader: str, tmp_path: Path) -> None:
    needs = READERS[reader][0]
    if (find_spec(needs) if needs in MODULES else shutil.which(needs)) is None:
        pytest.skip(f"{needs} is missing: install it")
    names = names_in(ground)
    without = read(ground, reader, False, tmp_path / "out")
    ground.session.forget()
    wait_until(lambda: not ground.files()["present"], what="no copies")
    assert not difference(without, read(ground, reader, True, tmp_path / "out"))
    warmed = ground.session.monarch("warm")
    assert warmed.returncode == 0, warmed.stderr
    before = ground.hits()
    assert not difference(without, read(ground, reader, True, tmp_path / "out"))
    assert ground.hits() > before or reader in ("find", "ls", "stat"), "no copy was read"
    # The reader must not make or change a file: the next reader would read a changed file from the
    # source.
    assert names_in(ground) == names
    assert ground.files()["bypass"] == {}

"""Common programs, run by shell scripts in several steps. Each step runs in ROOT/work, and uses the
files left there by the previous step.

Some things would differ between two runs: times, names and inode numbers. The scripts set them to
fixed values, or do not print them.
"""

from __future__ import annotations

from dataclasses import dataclass

# The timestamp is old, so that a copy that keeps it (`cp -a`, `rsync -a`) differs from a copy with
# a new timestamp.
MAKE_FILES = """
mkdir -p tree/a/b tree/c
for i in $(seq 40); do seq $((i * 37)) > tree/a/n$i; done
for i in $(seq 5); do head -c $((i * 100000)) /dev/zero | tr '\\0' $i > tree/a/b/z$i; done
ln -s ../a/n1 tree/c/link; ln tree/a/n2 tree/c/hard; : > tree/c/empty; chmod 640 tree/c/empty
find tree -exec touch -h -d '2014-05-13 16:53:20' {} +
"""
# Only the year of each timestamp is printed. The year shows whether the timestamp is old or was set
# during the run.
LIST = "find {} -printf '%P %y %#m %n %l %TY\\n' | sort; "
SUMS = "find {} -type f -print0 | sort -z | xargs -0 sha256sum; "


def listed(directory: str) -> str:
    return LIST.format(directory) + SUMS.format(directory)


@dataclass(frozen=True)
class Tool:
    """A program and the steps of its test.

    needs, modules : programs and Python modules that must be installed
    leave_out : suffixes of names. The content of files whose names end with one of them is not
        compared, because it depends on times, inode numbers or the order of events
    """

    needs: tuple[str, ...]
    steps: tuple[str, ...]
    leave_out: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


GIT = """
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE='2014-05-13T16:53:20' GIT_COMMITTER_DATE='2014-05-13T16:53:20'
export GIT_CONFIG_NOSYSTEM=1
git config --global init.defaultBranch main
git config --global pack.threads 1
git config --global gc.auto 0
"""

SQLITE = """
q() { sqlite3 -batch "$ROOT/work/base.db" "$@"; }
"""
COUNTING = "with recursive n(i) as (values(1) union all select i+1 from n where i<{})"

# A step that runs a Python script begins with one of these texts. The rest of the script and a line
# `END` follow.
H5PY = """$PYTHON - <<'END'
import h5py, numpy as np
def show(name, *more):
    with h5py.File(name, "r", *more) as file:
        file.visititems(lambda path, item: print(path, dict(item.attrs), item))
        for path in ("plain", "a/packed", "grown"):
            if path in file:
                print(path, int(file[path][()].astype("i8").sum()), file[path][3:7].tolist())
"""
NUMPY = """$PYTHON - <<'END'
import numpy as np, os
def show(found):
    print(found.shape, found.dtype, found.flags.writeable, int(found.astype("i8").sum()))
"""
END = "\nEND\n"

TOOLS = {
    "git": Tool(
        ("git",),
        (
            GIT + MAKE_FILES + "cd tree; git init -q .; git add -A; git commit -qm one; git fsck",
            GIT + "cd tree; git status --short; git log --stat --oneline; git fsck --full",
            GIT + "git clone -q tree clone; cd clone; git fsck; git status; git ls-tree -r HEAD",
            GIT + 'git clone -q --no-local "$ROOT/work/tree" far; cd far; git checkout -qb side; '
            "sed -i s/1/one/ a/n*; git mv c/empty d; git diff --stat; git commit -qam 2; git show",
            GIT + "cd far; git gc -q; git fsck; git grep -c one | sort | tail -3; git stash list; "
            "cd ../tree; git fetch -q ../far side; git merge -q FETCH_HEAD; git status; git fsck",
            GIT
            + "git -C tree log --oneline --stat; git -C far repack -adq; git -C far count-objects",
        ),
        # git's index contains the times and inode numbers of all files.
        leave_out=(".git/index",),
    ),
    "sqlite": Tool(
        ("sqlite3",),
        (
            SQLITE + "q 'create table t(i integer primary key, x text)'; "
            f'q "{COUNTING.format(3000)} insert into t select i, hex(zeroblob(i%50)) from n"; '
            "q 'create index x on t(x)' 'pragma integrity_check'",
            SQLITE + "q 'select count(*), sum(length(x)) from t' 'pragma quick_check'; "
            "q 'pragma journal_mode=wal' 'update t set x=x||i where i%3=0' 'select max(i) from t'",
            SQLITE + "q -readonly 'select sum(length(x)) from t'; q 'pragma journal_mode' "
            "'delete from t where i%7=0' 'pragma wal_checkpoint(full)' 'pragma integrity_check'",
            # Writers and readers run at the same time. Each of them eventually gets the lock, and
            # no row is lost.
            SQLITE + "for w in 1 2 3; do (for i in $(seq 12); do "
            "q '.timeout 60000' \"insert into t(x) values('$w $i')\"; done) & "
            "(for i in $(seq 12); do q '.timeout 60000' 'pragma quick_check'; done) & done; wait; "
            "q 'select count(*) from t' 'select x from t where x like \"_ %\" order by x'",
            SQLITE + "q 'pragma journal_mode=delete' 'vacuum' 'pragma integrity_check'; "
            "q 'begin' 'delete from t' 'rollback' 'select count(*) from t' '.backup other.db'; "
            "sqlite3 other.db 'select count(*), sum(length(x)) from t' 'pragma integrity_check'",
        ),
        # The content depends on the order in which the writers got the lock.
        leave_out=(".db",),
    ),
    "rsync": Tool(
        ("rsync",),
        (
            MAKE_FILES + "rsync -aH tree/ first/; " + listed("first"),
            'rsync -aHci tree/ first/; rsync -aH "$ROOT/work/first/" second; ' + listed("second"),
            "echo more >> second/a/n7; chmod 600 second/a/n8; rm second/a/n9; touch second/new; "
            "rsync -aHcn --delete -i tree/ second/ | sort",
            "rsync -aHi --delete --inplace tree/ second/ | sort; " + listed("second"),
            "rsync -aHc --delete tree/ second/; diff -r tree second; rsync -aHcni tree/ second/",
        ),
    ),
    "tar": Tool(
        ("tar",),
        (
            MAKE_FILES + "tar --sort=name -cf all.tar tree; sha256sum all.tar",
            "tar -tvf all.tar --full-time; mkdir out; tar -xpf all.tar -C out; " + listed("out"),
            "tar -df all.tar -C out; tar --sort=name -czf - -C out tree | gzip -dc | tar -t | wc",
            "seq 9 > tree/new; touch -d '2014-05-13' tree/new; tar -rf all.tar tree/new; "
            'cksum out/tree/a/n5; tar -tf "$ROOT/work/all.tar" | tail -1; '
            "tar -xOf all.tar tree/a/n40 | sha256sum",
            "rm -r out/tree; tar -xpf all.tar -C out; diff -r tree out/tree; " + listed("out"),
        ),
    ),
    "copies": Tool(
        ("cp", "diff"),
        (
            MAKE_FILES + "cp -a tree first; diff -r tree first; " + listed("first"),
            'cp -r "$ROOT/work/first" second; cp -aL tree/c third; du -a --apparent-size third; '
            "cmp first/a/n1 second/a/n1; diff -rq first second; cp -al tree linked; " + listed("."),
            "mv second/a second/e; sed -i s/1/one/ second/e/n*; sort -o second/e/n1 second/e/n1; "
            "grep -rc one second | sort; diff -r first second || true",
            "install -m 600 first/a/n3 second/e/n4; ln -sf n4 second/e/n5; truncate -s9 first/a/n6;"
            "dd if=first/a/b/z3 of=first/a/b/z1 bs=9 skip=3 seek=9 conv=notrunc status=none;"
            "split -b 30000 first/a/b/z5 part.; cat part.* | cmp - first/a/b/z5; " + listed("."),
            "$PYTHON -m zipfile -c all.zip tree; $PYTHON -m zipfile -t all.zip; "
            "find . -newermt 2014-05-14 -type f -size +1k | sort; rm -r first; ls -R",
        ),
        leave_out=(".zip",),
    ),
    "h5py": Tool(
        (),
        (
            H5PY
            + """
with h5py.File("a.h5", "w") as file:
    file["plain"] = np.arange(100_000)
    file.create_dataset("a/packed", data=np.arange(60_000) % 77, chunks=(1000,), compression="gzip")
    file.create_dataset("grown", (10,), "i4", maxshape=(None,))
show("a.h5")"""
            + END,
            H5PY
            + """
show("a.h5")
with h5py.File("a.h5", "r+") as file:
    file["plain"][5000:6000] = -1
    file["grown"].resize((5000,))
    file["grown"][:] = 7
    file["a"].attrs["epoch"] = 3
show("a.h5")"""
            + END,
            H5PY
            + """
show("a.h5")
try:
    h5py.File("a.h5", "x")
except OSError as error:
    print(error)
with h5py.File("a.h5", "a", libver="latest") as file:
    del file["plain"]
    file["link"] = h5py.ExternalLink("b.h5", "/far")
with h5py.File("b.h5", "w", driver="core") as file:
    file["far"] = np.ones(500)
with h5py.File("a.h5") as file:
    print(file["link"][()].sum())"""
            + END,
            H5PY
            + """
show("a.h5")
with h5py.File("a.h5", driver="core") as file:
    print(file["link"][()].sum(), list(file))
with h5py.File("b.h5", driver="stdio") as file:
    print(file["far"][()].sum())"""
            + END,
        ),
        leave_out=(".h5",),
        modules=("h5py", "numpy"),
    ),
    "numpy": Tool(
        (),
        (
            NUMPY
            + """
np.save("a.npy", np.arange(300_000).reshape(3, -1))
np.savez("b.npz", x=np.arange(5000), y=np.ones((7, 9)))
np.arange(70_000, dtype="i4").tofile("c.bin")
made = np.memmap("d.map", "i8", "w+", shape=(1000, 20)); made[:] = 5; made.flush()
show(np.load("a.npy")); show(np.memmap("d.map", "i8", "r"))"""
            + END,
            NUMPY
            + """
show(np.load("a.npy", mmap_mode="r")); show(np.fromfile("c.bin", "i4", offset=400, count=9))
private = np.load("a.npy", mmap_mode="c"); private[1] = 0; show(private)
shared = np.load("a.npy", mmap_mode="r+"); shared[2] = 1; shared.flush(); show(np.load("a.npy"))
with np.load("b.npz") as found:
    show(found["x"]); show(found["y"])
with open("c.bin", "ab") as file:
    np.arange(5, dtype="i4").tofile(file); print(file.tell())
show(np.fromfile("c.bin", "i4"))"""
            + END,
            NUMPY
            + """
for name in ("a.npy",):
    show(np.load(name)); show(np.load(name, mmap_mode="r"))
show(np.memmap("c.bin", "i4", "r", offset=8)); show(np.memmap("d.map", "i8", "c"))
with open("a.npy", "r+b") as file:
    show(np.load(file)); print(file.tell()); file.truncate(1000)
try:
    np.load("a.npy")
except ValueError as error:
    print(error)"""
            + END,
        ),
        leave_out=(".npz",),
        modules=("numpy",),
    ),
}

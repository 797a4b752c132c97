"""Bugs that the tests put into files of csrc. Each bug names the trial that must find it."""

from __future__ import annotations

from dataclasses import dataclass

from interleavings.building import Change

__all__ = ["BUGS", "Bug"]


@dataclass(frozen=True)
class Bug:
    trial: str
    changes: tuple[Change, ...]


def _bug(trial: str, *changes: tuple[str, str, str]) -> Bug:
    return Bug(trial, tuple(Change(*change) for change in changes))


BUGS = {
    # --- the library ------------------------------------------------------------------------------
    "an open does not look for changes": _bug(
        "entry",
        (
            "preload/fill/serve.c",
            "!monarch_is_off(s) &&\n        !monarch_entry_is_changed(s, e) &&",
            "!monarch_is_off(s) &&",
        ),
    ),
    "a close does not end a promotion": _bug(
        "closing",
        (
            "preload/calls/descriptors.c",
            "    will_close_direct(fd);\n    monarch_will_close(fd);\n    return",
            "    return",
        ),
    ),
    "dup2 keeps the recorded state of its target": _bug(
        "replacing",
        (
            "preload/calls/descriptors.c",
            "    if (fd != fresh)\n        monarch_untrack(fresh);\n",
            "",
        ),
    ),
    "an offset is read, and set": _bug(
        "offset",
        (
            "preload/descriptors/track.c",
            "!(*w & (TRACK_PINNED | TRACK_SEEKING)) &&\n           change(",
            "change(",
        ),
        (
            "preload/descriptors/track.c",
            "sys6(SYS_lseek, fd, by, SEEK_CUR,",
            "sys6(SYS_lseek, fd, sys_lseek(fd, 0, SEEK_CUR) + by, SEEK_SET,",
        ),
    ),
    "a promotion does not look for locks": _bug(
        "lock", ("preload/promotion/promote.c", " && !monarch_has_locks(dev, w->ino))", ")")
    ),
    "a lock does not wait for the daemon": _bug(
        "handover",
        (
            "preload/fill/handover.c",
            "        read_in_parts(fd, w);\n    await_end(fd);",
            "        read_in_parts(fd, w);",
        ),
    ),
    "a descriptor that is in use is changed": _bug(
        "flags", ("preload/descriptors/track.c", "!(seen & TRACK_PINNED) && change(", "change(")
    ),
    "a slot is another copy's": _bug(
        "failing",
        (
            "preload/fill/wait.c",
            "if (__atomic_load_n(&fills->word[slot], __ATOMIC_ACQUIRE) != word)",
            "if (0)",
        ),
    ),
    # --- descriptors that wait --------------------------------------------------------------------
    "a recall is not seen": _bug(
        "recalled",
        (
            "handover/kept.c",
            "    if (monarch_is_recalled(t->pool->shared.clients, h->claim, now))\n"
            "        drop_descriptor(t, h);\n",
            "    (void)drop_descriptor;\n",
        ),
    ),
    "a claim ends before its descriptor is closed": _bug(
        "granted",
        (
            "handover/handed.c",
            "    close(h->fd);\n    h->fd = -1;\n"
            "    monarch_end_claim(p->shared.clients, h->claim);\n",
            "    monarch_end_claim(p->shared.clients, h->claim);\n"
            "    close(h->fd);\n    h->fd = -1;\n",
        ),
    ),
    "a descriptor is closed under the lock": _bug(
        "granted",
        (
            "handover/kept.c",
            "    take_out(t, i);\n    h->next = t->dropped;",
            "    take_out(t, i);\n    monarch_give_back(t->pool, h);\n    h->next = t->dropped;",
        ),
        (
            "handover/kept.c",
            "    dropped->fd = h->fd;\n",
            "    dropped->fd = -1;\n    monarch_give_back(t->pool, h);\n",
        ),
    ),
    "nobody looks after the first descriptor": _bug(
        "recalled",
        ("handover/kept.c", "if (has_room && is_first)", "if (has_room && is_first && !t->count)"),
    ),
    "a descriptor does not wait for policy": _bug(
        "ordered",
        (
            "handover/kept.c",
            "h->is_told && iterations >= ITERATIONS && now - h->since_ns > ORDER_NS",
            "h->is_told && iterations < ITERATIONS",
        ),
    ),
    "an order leaves the descriptor in the table": _bug(
        "ordered",
        ("handover/kept.c", "        take_out(t, (unsigned)i);\n    }", "    }"),
        ("handover/kept.c", "        monarch_give_back(p, h);\n    free(h);\n}", "        ;\n}"),
        (
            "handover/handed.c",
            "    job->is_read = h->is_read;\n    h->fd = -1;\n",
            "    job->is_read = h->is_read;\n",
        ),
    ),
    "one more waits than may": _bug(
        "limit",
        ("handover/kept.c", "has_room = t->count < t->most,", "has_room = t->count <= t->most,"),
    ),
    "what does not wait is forgotten": _bug(
        "limit",
        (
            "handover/receive.c",
            "        asks |= answer == MONARCH_NOT_YET && monarch_asks_policy(p, h);\n",
            "",
        ),
    ),
    "what does not wait is not closed": _bug(
        "limit",
        (
            "handover/receive.c",
            "        monarch_give_back(p, h);\n        free(h);\n    }",
            "        free(h);\n    }",
        ),
    ),
    # --- claims -----------------------------------------------------------------------------------
    "a reader takes the claim of a descriptor": _bug(
        "shared",
        (
            "shared/claims.c",
            "    if (!monarch_is_in_transit(seen, now))\n        __",
            "    __",
        ),
    ),
    "two descriptors of a file are handed over": _bug(
        "shared",
        (
            "shared/claims.c",
            "    while (!monarch_is_in_transit(seen, now))\n",
            "    for (;;)\n",
        ),
    ),
    "a file that is read is found absent": _bug(
        "claimed",
        (
            "publish/find.c",
            " &&\n            !monarch_is_being_read(m, *at, e->ino, now))\n",
            ")\n            (void)now, ",
        ),
    ),
    "a read does not renew the claim": _bug(
        "claimed",
        (
            "preload/fill/handover.c",
            "    else if (e && e->size > MONARCH_UNIT)\n"
            "        monarch_claim_file(s->clients, id);\n",
            "",
        ),
    ),
    "the last order does not wait for its reader": _bug(
        "claimed",
        (
            "engine/schedule.c",
            "    return waits_for_reader(p, q->first, now);\n}",
            "    return 0;\n}",
        ),
    ),
    "a reader keeps its claim": _bug(
        "released",
        (
            "shared/claims.c",
            "    if (monarch_claim_names(claim, id) && !(claim & MONARCH_CLAIM_HANDED))\n"
            "        monarch_cancel_claim(",
            "    if (!claim)\n        monarch_cancel_claim(",
        ),
    ),
    "an order is looked at too late": _bug(
        "released", ("engine/work.c", "w->awaits_reader ? READER_NS : has_used", "has_used")
    ),
    "a claim does not end by itself": _bug(
        "killed",
        (
            "shared/claims.c",
            "monarch_claim_names(claim, id) && monarch_claim_holds(claim, now_ns);",
            "monarch_claim_names(claim, id) && now_ns;",
        ),
    ),
    "an order is forgotten": _bug(
        "killed", ("engine/schedule.c", "        me->awaits_reader = 1;\n", "")
    ),
}

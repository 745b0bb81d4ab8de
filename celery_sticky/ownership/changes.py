"""The changes of a view. Each function returns the next view: same generation, version + 1.

Three rules hold in all of them. An epoch never falls, and it grows when its slot's owner changes. A slot without an
owner goes to its target at once, because there is nobody to wait for. `home` follows the owner only while the member it
names is present, so a worker that was away gets its slots back when it returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from celery_sticky.ownership.plan import plan
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, STALLED, Member, MemberState, View


def fresh(
    *,
    slots: int,
    hash: str,  # noqa: A002  the word of the document
    generation: int,
    version: int,
    store_id: str,
    epochs: Sequence[int] | int = 0,
) -> View:
    """Return a document without members or owners.

    `epochs` are the highest epochs seen so far, by slot or over all; the new ones are above them.
    """
    seen = (epochs,) * slots if isinstance(epochs, int) else epochs
    if len(seen) != slots:
        raise ValueError(f"{len(seen)} epochs for {slots} slots")
    nobody = (None,) * slots
    return View(
        version=version,
        generation=generation,
        store_id=store_id,
        slots=slots,
        hash=hash,
        members={},
        owner=nobody,
        target=nobody,
        epoch=tuple(epoch + 1 for epoch in seen),
        home=nobody,
    )


def generation_after(generation: int, clock: float) -> int:
    """Return the generation of a new document: above `generation`, by the store's `clock` (seconds since the epoch).

    It counts microseconds, because a store may lose everything and receive two documents within one second. These have
    equal versions, so only the generation separates a swap meant for the first from one for the second.
    """
    return max(generation + 1, int(clock * 1_000_000))


def epochs_after(epoch: int, clock: float, *, outlive_store: bool) -> int:
    """Return the epoch above which a new document begins, if `epoch` is the highest that is known of.

    Where nothing but the store knows epochs, a store that has lost its data must not count from the start again: it
    counts from its `clock` (seconds since the epoch), which is above them, as slots change owners less than once a
    second.
    """
    return epoch if outlive_store else max(epoch, int(clock))


def join(view: View, member: Member, *, settle: bool = False) -> View:
    """Add a member, and plan; with `settle` (a cold start, more members will come) only add it.

    Raises:
        ValueError: a member has this name or incarnation already.
    """
    if member.name in view.members or view.member_of(member.incarnation):
        raise ValueError(f"{member.name} ({member.incarnation}) is a member already")
    version = view.version + 1
    joined = replace(view, members={**view.members, member.name: replace(member, joined=version)})
    return _next(joined if settle else _planned(joined))


def succeed(view: View, member: Member) -> View:
    """Replace the dead incarnation of a name by a new one, which owns the same slots under higher epochs.

    Raises:
        ValueError: no member has this name, or a member has this incarnation already.
    """
    if view.member_of(member.incarnation):
        raise ValueError(f"{member.incarnation} is a member already")
    _member(view, member.name)
    mine = view.owned_by(member.name)
    epoch = tuple(epoch + (slot in mine) for slot, epoch in enumerate(view.epoch))
    members = {**view.members, member.name: replace(member, joined=view.version + 1)}
    return _next(_planned_if_warm(replace(view, members=members, epoch=epoch)))


def leave(view: View, name: str) -> View:
    """Stop targeting a member; it keeps its slots until it releases them, and is removed if it has none."""
    leaving = replace(_member(view, name), state=MemberState.LEAVING)
    planned = _planned_if_warm(replace(view, members={**view.members, name: leaving}))
    return _next(_without_idle_leaver(planned, name))


def stall(view: View, name: str, why: str) -> View:
    """Record why a member cannot run tasks now, or with an empty `why` that it can."""
    member = _member(view, name)
    others = {key: value for key, value in member.attributes.items() if key != STALLED}
    noted = replace(member, attributes={**others, STALLED: why} if why else others)
    return _next(replace(view, members={**view.members, name: noted}))


def evict(view: View, name: str) -> View:
    """Remove a member; its slots go to their targets at once, or to nobody if no member takes slots."""
    _member(view, name)
    planned = _planned(_without(view, name))
    return _next(_handed_over(planned, planned.owned_by(name)))


def release(view: View, name: str, slots: Collection[int]) -> View:
    """Hand slots over to their targets; remove a leaving member with its last slot.

    Raises:
        ValueError: `name` does not own one of the slots, or is its target.
    """
    _member(view, name)
    wrong = set(slots) - view.giving(name)
    if wrong:
        raise ValueError(f"{name} cannot release slots {sorted(wrong)}: it does not own them, or should keep them")
    return _next(_without_idle_leaver(_handed_over(view, slots), name))


def depart(view: View, name: str) -> View:
    """Remove a leaving member that has closed its worker queue.

    Raises:
        ValueError: the member is not leaving, or still owns slots.
    """
    if _member(view, name).state is not MemberState.LEAVING or name in view.owner:
        raise ValueError(f"{name} cannot depart: it is not leaving, or owns slots")
    return _next(_without(view, name))


def raise_epoch(view: View, slot: int, above: int) -> View:
    """Raise the epoch of a slot above a fence found at its queue; the owner stays."""
    epoch = list(view.epoch)
    epoch[slot] = max(epoch[slot], above) + 1
    return _next(replace(view, epoch=tuple(epoch)))


def replan(view: View) -> View:
    """Plan again, at the end of a cold start."""
    return _next(_planned(view))


def _next(view: View) -> View:
    return replace(view, version=view.version + 1, home=_remembered(view))


def _member(view: View, name: str) -> Member:
    if name not in view.members:
        raise ValueError(f"{name} is not a member")
    return view.members[name]


def _without(view: View, name: str) -> View:
    return replace(view, members={other: member for other, member in view.members.items() if other != name})


def _without_idle_leaver(view: View, name: str) -> View:
    member = view.members[name]
    idle = member.state is MemberState.LEAVING and name not in view.owner and HAS_WORKER_QUEUE not in member.attributes
    return _without(view, name) if idle else view


def _planned_if_warm(view: View) -> View:
    """Plan, unless nobody owns a slot: a member that returns or leaves must not end the wait of a cold start."""
    return _planned(view) if any(view.owner) else view


def _planned(view: View) -> View:
    planned = replace(view, target=plan(view))
    pairs = zip(planned.owner, planned.target, strict=True)
    return _handed_over(
        planned, [slot for slot, (owner, target) in enumerate(pairs) if owner is None and target is not None]
    )


def _handed_over(view: View, slots: Iterable[int]) -> View:
    present = {None, *(member.name for member in view.active)}
    owner, epoch, home = list(view.owner), list(view.epoch), list(view.home)
    for slot in slots:
        owner[slot] = view.target[slot]
        epoch[slot] += 1
        if owner[slot] is not None and home[slot] in present:
            home[slot] = owner[slot]
    return replace(view, owner=tuple(owner), epoch=tuple(epoch), home=tuple(home))


def _remembered(view: View) -> tuple[str | None, ...]:
    """Return `home` with only as many absent names as the document has space for: those with most slots stay.

    If each new worker has a new name, nobody returns, and names would pile up until each slot had its own.
    """
    homes = Counter(name for name in view.home if name is not None and name not in view.members)
    most = max(16, view.slots // 13 - len(view.members))
    if len(homes) <= most:
        return view.home
    forgotten = set(sorted(homes, key=lambda name: (-homes[name], name))[most:])
    return tuple(owner if name in forgotten else name for owner, name in zip(view.owner, view.home, strict=True))

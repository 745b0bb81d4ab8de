"""What can happen to a view. Each function returns the next view: same generation, version + 1.

Three rules hold in every one of them: an epoch never falls and grows when its slot's owner changes; a slot without an
owner goes to its target at once, for there is nobody to wait for; `home` follows the owner only while the name it
holds is there, so a name that is away finds its slots again when it returns.
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
    """Return a document without members, every slot without an owner.

    `epochs` are the highest seen so far, by slot or over all; the new ones are above them.
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
    """Return the generation of a fresh document: above `generation`, by the store's `clock` (seconds since the epoch).

    It counts microseconds, for a store may lose everything and be given two documents within one second: their
    versions are alike, and only the generation tells a swap that was meant for the first one from the second.
    """
    return max(generation + 1, int(clock * 1_000_000))


def join(view: View, member: Member, *, settle: bool = False) -> View:
    """Add a member, and plan; with `settle` (a cold start: more will come) only add it.

    Raises:
        ValueError: the name or the incarnation is a member's already.
    """
    if member.name in view.members or view.member_of(member.incarnation):
        raise ValueError(f"{member.name} ({member.incarnation}) is a member already")
    version = view.version + 1
    joined = replace(view, members={**view.members, member.name: replace(member, joined=version)})
    return _next(joined if settle else _planned(joined))


def succeed(view: View, member: Member) -> View:
    """Put a new incarnation in the place of the dead one of its name: it owns the same slots, under higher epochs.

    Raises:
        ValueError: no member has this name, or the incarnation is a member's already.
    """
    if view.member_of(member.incarnation):
        raise ValueError(f"{member.incarnation} is a member already")
    _member(view, member.name)
    mine = view.owned_by(member.name)
    epoch = tuple(epoch + (slot in mine) for slot, epoch in enumerate(view.epoch))
    members = {**view.members, member.name: replace(member, joined=view.version + 1)}
    return _next(_planned_if_warm(replace(view, members=members, epoch=epoch)))


def leave(view: View, name: str) -> View:
    """Make a member the target of nothing; it keeps what it owns until released, and is removed if that is nothing."""
    leaving = replace(_member(view, name), state=MemberState.LEAVING)
    planned = _planned_if_warm(replace(view, members={**view.members, name: leaving}))
    return _next(_without_idle_leaver(planned, name))


def stall(view: View, name: str, why: str) -> View:
    """Note why a member cannot run tasks now, or with an empty `why` that it can."""
    member = _member(view, name)
    others = {key: value for key, value in member.attributes.items() if key != STALLED}
    noted = replace(member, attributes={**others, STALLED: why} if why else others)
    return _next(replace(view, members={**view.members, name: noted}))


def evict(view: View, name: str) -> View:
    """Remove a member; what it owned goes to the targets at once, or to nobody where no member takes slots."""
    _member(view, name)
    planned = _planned(_without(view, name))
    return _next(_handed_over(planned, planned.owned_by(name)))


def release(view: View, name: str, slots: Collection[int]) -> View:
    """Hand slots over to their targets; a leaving member is removed with the last one.

    Raises:
        ValueError: `name` does not own one of the slots, or is itself the target of it.
    """
    _member(view, name)
    wrong = set(slots) - view.giving(name)
    if wrong:
        raise ValueError(f"{name} cannot release slots {sorted(wrong)}: it does not own them, or should keep them")
    return _next(_without_idle_leaver(_handed_over(view, slots), name))


def depart(view: View, name: str) -> View:
    """Remove a leaving member that has closed its worker queue.

    Raises:
        ValueError: it is not leaving, or still owns slots.
    """
    if _member(view, name).state is not MemberState.LEAVING or name in view.owner:
        raise ValueError(f"{name} cannot depart: it is not leaving, or owns slots")
    return _next(_without(view, name))


def raise_epoch(view: View, slot: int, above: int) -> View:
    """Lift the epoch of a slot over a fence found at its queue; the owner stays."""
    epoch = list(view.epoch)
    epoch[slot] = max(epoch[slot], above) + 1
    return _next(replace(view, epoch=tuple(epoch)))


def replan(view: View) -> View:
    """Plan anew: the end of a cold start."""
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
    """While nobody owns a slot, a cold start settles: whoever comes again or leaves meanwhile does not end that."""
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
    """Return `home` with no more absent names than a document has space for: those with most slots are kept.

    Where each new worker has a new name, nobody ever comes back, and names would pile up until each slot had its own.
    """
    homes = Counter(name for name in view.home if name is not None and name not in view.members)
    most = max(16, view.slots // 13 - len(view.members))
    if len(homes) <= most:
        return view.home
    forgotten = set(sorted(homes, key=lambda name: (-homes[name], name))[most:])
    return tuple(owner if name in forgotten else name for owner, name in zip(view.owner, view.home, strict=True))

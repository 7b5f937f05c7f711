"""Semantic mutations of real receipts, signed again by the single party that would make them.

A mutation changes one value of the body, or drops, doubles or swaps members of a list. Then one
party signs again what it signs: nobody (a stranger), a provider, the client, its session key, or
the coordinator, who also repairs the hashes that it signs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quorate_protocol.codec import canonical
from quorate_protocol.codec.declared_types import Json
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import hash_list, hash_tuple
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_HASH, Address
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.receipts import verdict_again

Path = tuple[str | int, ...]
STRANGER, COORDINATOR, CLIENT, SESSION, PROVIDER = (
    "stranger",
    "coordinator",
    "client",
    "session",
    "provider",
)


@dataclass(frozen=True)
class Keys:
    """The private keys of everybody who signed in a receipt."""

    domain: Domain
    coordinator: KeySigner
    by_address: dict[Address, KeySigner]  # clients, session keys, operator keys


@dataclass(frozen=True)
class Mutation:
    """One false receipt: what was changed, who signed it again, and the whole."""

    path: Path
    party: str
    body: Receipt


def mutations(body: Receipt, keys: Keys, most: int) -> Iterator[Mutation]:
    """Yields about `most` mutations of a receipt, evenly spread over its parts.

    Each is still a receipt by form, and differs from the real one.
    """
    tree = canonical.to_json(body)
    found = [
        (path, other, party)
        for path, value in _nodes(tree, ())
        if path and path[:2] != ("verdict", "sig")
        for other in _others(value)
        for party in _parties(path)
    ]
    for path, other, party in found[:: max(1, len(found) // most)]:
        try:
            made: Receipt = canonical.from_json(Receipt, _with(tree, path, other))
        except Refused:
            continue  # not a receipt by form: such a file gives one failed check
        signed = _signed_again(body, made, party, keys)
        if _differs(signed, body):
            yield Mutation(path, party, signed)


def _differs(one: Receipt, other: Receipt) -> bool:
    return one.evidence() != other.evidence() or one.verdict.message != other.verdict.message


def _parties(path: Path) -> tuple[str, ...]:
    match path:
        case ("session", *_):
            return STRANGER, CLIENT, COORDINATOR
        case ("order" | "witness" | "stop", *_):
            return STRANGER, SESSION, COORDINATOR
        case ("executions" | "skips", _, "accept" | "commit" | "reveal" | "decline", *_):
            return STRANGER, PROVIDER, COORDINATOR
        case _:
            return STRANGER, COORDINATOR


# -------------------------------------------------------------------------------------------- trees


def _nodes(tree: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    yield path, tree
    if isinstance(tree, dict):
        for name, item in tree.items():
            yield from _nodes(item, (*path, name))
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from _nodes(item, (*path, number))


def _others(value: Json) -> Iterator[Json]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from {value + 1, value - 1, 0, value * 2, value + 3600} - {value}
    elif isinstance(value, str) and value.startswith("0x"):
        yield from {
            _flipped(value, 2),
            _flipped(value, -1),
            "0x" + "00" * (len(value) // 2 - 1),
        } - {value}
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, list):
        yield from _other_lists(value)
    elif isinstance(value, dict):
        yield None


def _flipped(text: str, at: int) -> str:
    place = at % len(text)
    return text[:place] + ("1" if text[place] == "0" else "0") + text[place + 1 :]


def _other_lists(value: list[Json]) -> Iterator[Json]:
    for number in range(len(value)):
        yield [*value[:number], *value[number + 1 :]]
        yield [*value[: number + 1], *value[number:]]
    for number in range(len(value) - 1):
        yield [*value[:number], value[number + 1], value[number], *value[number + 2 :]]
    if len(value) > 1:
        yield []


def _with(tree: Json, path: Path, value: Json) -> Json:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(tree, dict):
        return {
            name: _with(item, rest, value) if name == step else item for name, item in tree.items()
        }
    assert isinstance(tree, list)
    return [_with(item, rest, value) if n == step else item for n, item in enumerate(tree)]


# --------------------------------------------------------------------------------------- signatures


def _signed_again(old: Receipt, new: Receipt, party: str, keys: Keys) -> Receipt:
    """The receipt with the party's signatures under what it changed."""
    match party:
        case "client":
            return replace(new, session=_seal(new.session, old.session.message.client, keys))
        case "session":
            key = old.session.message.session_key
            return replace(
                new,
                order=_seal(new.order, key, keys),
                witness=_seal(new.witness, key, keys) if new.witness else None,
                stop=_seal(new.stop, key, keys) if new.stop else None,
            )
        case "provider":
            return _by_providers(old, new, keys)
        case "coordinator":
            return _by_coordinator(new, keys)
        case _:
            return new


def _seal(envelope: Envelope, key: Address, keys: Keys) -> Envelope:  # type: ignore[type-arg]
    signer = keys.by_address.get(key)
    return seal(keys.domain, envelope.message, signer.sign) if signer is not None else envelope


def _by_providers(old: Receipt, new: Receipt, keys: Keys) -> Receipt:
    """Only one execution or skip differs, so only one provider signs."""
    executions = tuple(
        replace(
            item,
            accept=_seal(item.accept, item.operator_key, keys),
            commit=_seal(item.commit, item.operator_key, keys),
        )
        for item in new.executions
    )
    skips = tuple(
        replace(skip, decline=_seal(skip.decline, skip.operator_key, keys))
        if skip.decline is not None
        else skip
        for skip in new.skips
    )
    return replace(new, executions=executions, skips=skips)


def _by_coordinator(body: Receipt, keys: Keys) -> Receipt:
    """The coordinator repairs every hash that it signs, then signs all its messages."""
    domain, sign = keys.domain, keys.coordinator.sign

    def sealed(envelope: Envelope) -> Envelope:  # type: ignore[type-arg]
        return seal(domain, envelope.message, sign)

    executions = tuple(
        replace(
            item, assignment=sealed(item.assignment), commit_receipt=sealed(item.commit_receipt)
        )
        for item in body.executions
    )
    skips = tuple(replace(skip, assignment=sealed(skip.assignment)) for skip in body.skips)
    batches = []
    for number, batch in enumerate(body.batches):
        hashes = tuple(
            hash_tuple(
                digest(domain, skip.assignment.message),
                skip.decline.digest(domain) if skip.decline is not None else ZERO_HASH,
            )
            for skip in skips
            if skip.batch == number
        )
        witness = body.witness.digest(domain) if body.witness and number == 0 else ZERO_HASH
        message = replace(batch.message, skips_hash=hash_list(hashes), witness_hash=witness)
        batches.append(seal(domain, message, sign))
    made = replace(
        body, ack=sealed(body.ack), executions=executions, skips=skips, batches=tuple(batches)
    )
    return verdict_again(made, domain, sign)

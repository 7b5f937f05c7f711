"""Tests that a rotated operator key is kept and signs as long as a message may need it (PROTOCOL
§2).
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorate_contracts.money_texts import Currency
from quorate_node.base import provider_keys
from quorate_node.base.operator_keys import (
    FILE,
    HelloSigner,
    KeyValidities,
    KeyValidity,
    OperatorKeys,
    send_under_any_key,
    write_validities,
)
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli.app import app
from quorate_node.core import effects, events, jury_duty
from quorate_node.core.phases import Declined
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.key_rotation import unneeded_keys
from quorate_node.owner.registration import RegistrationState, missing
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, UnixSeconds
from quorate_runtime.keys.crypto import KeySigner, PeerKey, recover
from quorate_runtime.keys.keystore import Keystore
from support.cli_prompt import password_file
from support.markets.provider_world import (
    COORDINATOR,
    NOW,
    OPERATOR,
    PROVIDER,
    STATEMENT_KEY,
    STRANGER,
    Driver,
    case_opened,
    make_spec,
    make_terms,
    signed_assignment,
)

NEW = KeySigner(b"\x09" * 32)
SINCE = UnixSeconds(NOW + 100)
FOREVER = UnixSeconds(2**48 - 1)
BOTH = ProviderKeys(PROVIDER, PROVIDER, NEW, PeerKey(ZERO_HASH), ZERO_HASH, STRANGER, (OPERATOR,))
BEFORE = (
    KeyValidity(OPERATOR.address, NOW, FOREVER),
    KeyValidity(NEW.address, UnixSeconds(0), UnixSeconds(0)),
)
AFTER = (KeyValidity(OPERATOR.address, NOW, SINCE), KeyValidity(NEW.address, SINCE, FOREVER))


def test_needed_keys_are_in_the_keystore_after_a_crash_in_any_step_of_a_rotation(
    tmp_path: Path,
) -> None:
    """The rotation adds keys beside the others, and retires them one by one."""
    keystore = Keystore.at(tmp_path, "secret", DEVNET)
    first = provider_keys.create(keystore, None, None).operator
    second, third = provider_keys.add_operator(keystore), provider_keys.add_operator(keystore)
    loaded = provider_keys.load(keystore, None, None)
    assert [item.address for item in loaded.operators()] == [
        first.address,
        second.address,
        third.address,
    ]
    place = provider_keys.retire_operator(tmp_path, first.address)
    assert place is not None and json.loads(place.read_text())["address"] == first.address.hex(), (
        "put away, not lost"
    )
    assert provider_keys.retire_operator(tmp_path, first.address) is None
    assert provider_keys.retire_operator(tmp_path, third.address) is None, "never the newest"
    again = provider_keys.create(keystore, None, None)
    assert (again.operator.address, [item.address for item in again.past]) == (
        third.address,
        [second.address],
    ), "a second init makes no new key"
    assert provider_keys.operator_names(tmp_path) == ("operator-2", "operator-3")
    for _ in range(provider_keys.OPERATORS_MAX - 2):
        provider_keys.add_operator(keystore)
    with pytest.raises(Refused) as refused:
        provider_keys.add_operator(keystore)
    assert refused.value.code is Code.BUSY


def test_rotate_command_makes_one_key_at_a_time(tmp_path: Path) -> None:
    """If the owner types it again before the daemon uses the new key, it makes no further key."""
    flags = f"--home {tmp_path / 'node'} --password-file {password_file(tmp_path)} --json"

    def typed(line: str) -> dict[str, object]:
        result = CliRunner().invoke(app, f"{line} {flags}".split())
        assert result.exit_code == 0, result.output
        found: dict[str, object] = json.loads(result.stdout)
        return found

    init = "init --coordinator http://127.0.0.1:7700 --limits devnet"
    first, new = typed(init)["operator"], typed("rotate")
    assert new["is_new"] and new["operator"] != first
    assert typed("rotate") == {**new, "is_new": False}
    assert typed(init)["operator"] == new["operator"]
    key = Address(bytes.fromhex(str(new["operator"])[2:]))
    write_validities(tmp_path / "node" / FILE, KeyValidities((KeyValidity(key, SINCE, FOREVER),)))
    assert typed("rotate")["is_new"], "the chain knows that one: another may follow"


def test_key_of_a_message_follows_from_its_time(tmp_path: Path) -> None:
    operator_keys = OperatorKeys(BOTH, tmp_path / FILE)
    assert operator_keys.current is OPERATOR and operator_keys.is_changing, (
        "nothing is known yet: the oldest"
    )
    operator_keys.learn(BEFORE)
    assert operator_keys.current is OPERATOR and operator_keys.valid_at(FOREVER) is OPERATOR
    assert not operator_keys.may_take_work(COORDINATOR)
    operator_keys.learn(AFTER)
    assert [operator_keys.valid_at(UnixSeconds(SINCE + n)) for n in (-1, 0, 1)] == [
        OPERATOR,
        OPERATOR,
        NEW,
    ], "until is inclusive, and of two keys the older signs"
    assert not operator_keys.may_take_work(COORDINATOR), "it has not heard of the new key"
    operator_keys.note_accepted(COORDINATOR, OPERATOR.address)
    assert not operator_keys.may_take_work(COORDINATOR) and operator_keys.for_announcements(
        COORDINATOR
    ) == (NEW, OPERATOR)
    operator_keys.note_accepted(COORDINATOR, NEW.address)
    assert operator_keys.may_take_work(COORDINATOR) and operator_keys.for_coordinator(
        COORDINATOR
    ) == (NEW, OPERATOR)
    again = OperatorKeys(BOTH, tmp_path / FILE)
    assert (again.current, again.for_moment(SINCE)) == (NEW, (OPERATOR, NEW)), (
        "after a restart, while the chain is away"
    )
    again.forget(OPERATOR.address)
    assert OperatorKeys(BOTH, tmp_path / FILE).current is NEW and again.signers == (NEW,)
    elsewhere = OperatorKeys(replace(BOTH, owner=None))
    elsewhere.learn(BEFORE)
    assert elsewhere.may_take_work(COORDINATOR), "an owner elsewhere may take days to rotate"


def test_refused_hello_is_repeated_under_the_next_key() -> None:
    operator_keys = OperatorKeys(BOTH)
    operator_keys.learn(AFTER)
    speaker, digest = HelloSigner(operator_keys, COORDINATOR), ZERO_HASH
    said = [(recover(Hash32(digest), speaker.sign(digest)), speaker.address) for _ in range(3)]
    assert said == [(key.address, key.address) for key in (NEW, OPERATOR, NEW)]
    operator_keys.note_accepted(COORDINATOR, OPERATOR.address)
    speaker.sign(digest)
    assert speaker.address == OPERATOR.address, "the key that was accepted last comes first"


async def test_another_key_is_tried_only_after_a_refusal_of_the_key() -> None:
    tried: list[Signer] = []

    async def send(code: Code, taken: Signer | None, signer: Signer) -> Signer:
        tried.append(signer)
        if signer is not taken:
            raise Refused(code)
        return signer

    for code in (Code.WRONG_SIGNER, Code.EQUIVOCATION):
        assert await send_under_any_key((OPERATOR, NEW), partial(send, code, NEW)) is NEW
    for code, taken in ((Code.WRONG_SIGNER, None), (Code.TOO_LATE, NEW)):
        with pytest.raises(Refused) as refused:
            await send_under_any_key((OPERATOR, NEW), partial(send, code, taken))
        assert refused.value.code is code
    assert tried == [OPERATOR, NEW, OPERATOR, NEW, OPERATOR, NEW, OPERATOR]


def test_old_key_is_kept_while_leases_ballots_or_offers_need_it() -> None:
    operator_keys = OperatorKeys(BOTH)
    late = UnixSeconds(SINCE + DEVNET.offer_ttl + 1)
    operator_keys.learn(BEFORE)
    assert unneeded_keys(operator_keys, (), (), late, DEVNET.offer_ttl) == (), (
        "the chain still knows it alone"
    )
    operator_keys.learn(AFTER)
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    (live,) = driver.core.live()
    assert live.assignment_hash == lease
    assert operator_keys.valid_at(live.assignment.message.accept_by) is OPERATOR
    duty = jury_duty.JuryDuty(case_opened(), PROVIDER, (PROVIDER,), late, jury_duty.Waiting())
    assert unneeded_keys(operator_keys, (live,), (), late, DEVNET.offer_ttl) == ()
    assert unneeded_keys(operator_keys, (), (duty,), late, DEVNET.offer_ttl) == ()
    assert unneeded_keys(operator_keys, (), (), UnixSeconds(late - 1), DEVNET.offer_ttl) == ()
    assert unneeded_keys(
        operator_keys, (), (duty.to(jury_duty.Served("decided", late)),), late, DEVNET.offer_ttl
    ) == (OPERATOR.address,)


def test_no_assignment_is_accepted_while_the_key_is_being_changed() -> None:
    driver, spec = Driver(ProviderCore(make_terms())), make_spec()
    event = events.AssignmentReceived(
        signed_assignment(spec), spec, (), STATEMENT_KEY.address, is_rotating=True
    )
    (answer,) = driver.do(event)
    assert isinstance(answer, effects.SendDecline)
    phase = driver.execution(answer.assignment_hash).phase
    assert isinstance(phase, Declined) and "operator key" in phase.text


CURRENCY = Currency(31337, Address(b"\x55" * 20), "qUSD")


def test_check_says_what_a_rotation_waits_for() -> None:
    found = RegistrationState(
        1, OPERATOR.address, 1, 10**20, 10**20, Amount(0), Amount(0), False, {}, CURRENCY
    )
    (here,), (elsewhere,) = (
        missing(found, BOTH, 10**9),
        missing(found, replace(BOTH, owner=None), 10**9),
    )
    assert not here.is_blocking and here.remedy == "quorate node up"
    assert not elsewhere.is_blocking and PROVIDER.hex() in elsewhere.remedy
    assert NEW.address.hex() in elsewhere.remedy
    assert missing(replace(found, operator_key=NEW.address), BOTH, 10**9) == ()

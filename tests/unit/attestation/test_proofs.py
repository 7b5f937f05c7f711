"""A proof has one encoding, passes if it is right, and is refused if anything in it is wrong."""

import random
from collections.abc import Callable

import pytest

from quorate_attestation import proof_document
from quorate_attestation.arithmetic.proof_check import SecretKeeper, check
from quorate_attestation.catalogue import CPU, models, models_called
from quorate_attestation.parameters import CPU_PARAMETERS, Parameters, detection, parameters_for
from quorate_attestation.proof_document import Proof, Sections
from quorate_attestation.provers.engine import Engine
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Small
from quorate_protocol.values import replace
from support.attestation.challenges import DOMAIN, SMALL, account, beacon, challenge, nonce, prove
from support.attestation.cheats import ForgetfulEngine, LateEngine, SkippingEngine

PROOF = prove(challenge(gpus=2))
KEEPER = SecretKeeper(b"\x07" * 32)


def refusal(proof: Proof) -> Refused:
    with pytest.raises(Refused) as refused:
        check(proof, DOMAIN, KEEPER)
    return refused.value


@pytest.mark.rule("10.12")
def test_a_right_proof_passes_for_everybody() -> None:
    data = PROOF.encode()
    read = proof_document.decode(data)
    assert read == PROOF and read.encode() == data
    for secret in range(5):
        check(read, DOMAIN, SecretKeeper(bytes([secret]) * 32))


@pytest.mark.rule("10.12")
def test_other_encodings_are_refused() -> None:
    data = PROOF.encode()
    length = int.from_bytes(data[:4], "big")
    spaced = data[4 : 4 + length].replace(b",", b", ", 1)
    cases = {
        Code.MALFORMED: (data[:-1], data + b"\0", b"", data[:3], b"\xff" * 64),
        Code.NOT_CANONICAL: (len(spaced).to_bytes(4, "big") + spaced + data[4 + length :],),
        Code.OVERSIZE: (bytes(proof_document.PROOF_BYTES_MAX + 1),),
    }
    for code, texts in cases.items():
        for text in texts:
            with pytest.raises(Refused) as refused:
                proof_document.decode(text)
            assert refused.value.code is code


@pytest.mark.rule("10.12")
def test_random_bytes_raise_only_refusals() -> None:
    data, chance = PROOF.encode(), random.Random(3)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(min(len(changed), 6000))] = chance.randrange(256)
        cut = bytes(changed[: chance.choice((len(changed), chance.randrange(len(changed))))])
        try:
            check(proof_document.decode(cut), DOMAIN, KEEPER)
        except Refused:
            continue
        assert cut == data


@pytest.mark.rule("10.8", "10.9", "10.11")
@pytest.mark.parametrize("section", Sections.__struct_fields__)
def test_a_changed_byte_in_a_section_is_noticed(section: str) -> None:
    whole, chance = getattr(PROOF.sections, section), random.Random(4)
    for _ in range(12):
        changed = bytearray(whole)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        sections = replace(PROOF.sections, **{section: bytes(changed)})
        assert refusal(replace(PROOF, sections=sections)).code is Code.DOES_NOT_OPEN


@pytest.mark.rule("10.4")
@pytest.mark.parametrize(
    "change",
    [
        {"peer_key": nonce(1)},
        {"provider": account(9)},
        {"beacon": beacon(8)},
        {"gpus": challenge(gpus=2).gpus[::-1]},
    ],
)
def test_a_proof_of_another_key_round_or_gpu_is_refused(change: dict[str, object]) -> None:
    header = PROOF.header
    other = replace(header, challenge=replace(header.challenge, **change))  # type: ignore[arg-type]
    assert refusal(replace(PROOF, header=other)).code is Code.DOES_NOT_OPEN


@pytest.mark.rule("10.4")
def test_a_proof_of_another_place_or_deployment_is_refused() -> None:
    other = replace(PROOF, header=replace(PROOF.header, gpu=Small(1)))
    assert refusal(other).code is Code.DOES_NOT_OPEN
    with pytest.raises(Refused):
        check(PROOF, replace(DOMAIN, verifying_contract=Address(b"\x23" * 20)), KEEPER)


@pytest.mark.rule("10.4", "10.10")
def test_a_changed_nonce_or_root_is_refused() -> None:
    header = PROOF.header
    for place, stage in enumerate(header.stages):
        for field in ("nonces", "roots"):
            changed = replace(stage, **{field: (nonce(99), *getattr(stage, field)[1:])})  # type: ignore[arg-type]
            stages = (*header.stages[:place], changed, *header.stages[place + 1 :])
            assert refusal(replace(PROOF, header=replace(header, stages=stages)))
    sample = (nonce(99), *header.sample_nonces[1:])
    assert refusal(replace(PROOF, header=replace(header, sample_nonces=sample)))


@pytest.mark.rule("10.8", "10.9")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SkippingEngine(0.4), "is wrong"),
        (lambda: ForgetfulEngine(0.5), "memory is missing"),
        (LateEngine, "is not what round"),
    ],
)
def test_a_cheating_prover_is_refused(make: Callable[[], Engine], words: str) -> None:
    found = refusal(prove(challenge(), make=make))
    assert found.code is Code.DOES_NOT_OPEN and words in found.detail


@pytest.mark.rule("10.11")
def test_the_share_of_skips_that_are_noticed_is_the_formulas() -> None:
    """Rows are skipped; each of 200 samples of 24 tiles is drawn by other nonces."""
    chance, share = random.Random(5), 0.05
    skipped = {row for row in range(SMALL.order) if chance.random() < share}
    trials, noticed = 2000, 0
    for trial in range(trials):
        stages = PROOF.header.stages
        sample = proof_document.sample_seed(nonce(0), 0, stages, (nonce(trial),))
        drawn = proof_document.seeds.drawn_tiles(sample, SMALL)
        noticed += any(row in skipped for _, row, _ in drawn)
    expected = detection(SMALL, len(skipped) / SMALL.order)
    assert abs(noticed / trials - expected) < 0.04


@pytest.mark.rule("10.11")
def test_the_full_size_bounds_what_can_be_skipped() -> None:
    (model,) = models_called("H200 SXM")
    full = parameters_for(model, 140 << 30)
    assert full.order == 16384 and full.tiles == 1024
    assert detection(full, 0.0136) >= 1 - 2**-20
    assert detection(full, 0.0130) < 1 - 2**-20


def test_sizes_of_every_model_are_within_bounds() -> None:
    for model in models():
        parameters_for(model, model.vram_bytes).validate()
        size = sum(proof_document.section_sizes(parameters_for(model, model.vram_bytes)))
        assert size + proof_document.HEADER_BYTES_MAX < proof_document.PROOF_BYTES_MAX
    assert parameters_for(CPU, 1 << 30) == CPU_PARAMETERS
    CPU_PARAMETERS.validate()


@pytest.mark.parametrize(
    "change",
    [
        {"order": 300},
        {"order": 32768},
        {"rounds": 0},
        {"tiles": 5000},
        {"pages": 0},
        {"chains": 100},
        {"chains": 16},
        {"chains_opened": 0},
        {"batches": 0},
        {"page_rounds": 5000},
    ],
)
def test_sizes_out_of_bounds_are_refused(change: dict[str, int]) -> None:
    wrong: Parameters = replace(SMALL, **change)
    with pytest.raises(Refused) as refused:
        wrong.validate()
    assert refused.value.code is Code.MALFORMED


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": ()},
        {"gpus": challenge().gpus * 2},
        {"gpus": (replace(challenge().gpus[0], model="H100"),)},
        {"gpus": (replace(challenge().gpus[0], vram_bytes=1),)},
        {"verifiers": ()},
        {"verifiers": (account(1), account(1))},
        {"verifiers": (account(1), account(0))},
    ],
)
def test_challenges_out_of_bounds_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(Refused) as refused:
        replace(challenge(), **change).validate()  # type: ignore[arg-type]
    assert refused.value.code is Code.MALFORMED

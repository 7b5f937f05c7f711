"""Mutants that the model of `test_money_machine` notices: contract, its text, the change."""

MONEY = {
    "claims are not remembered": (
        "Epochs",
        "self.claimed[coordinator][leaf.account] = credit",
        "pass",
    ),
    "claims of nothing are paid again": (
        "Epochs",
        "if credit <= before or",
        "if credit < before or",
    ),
    "only the last claim of many is paid": (
        "Escrow",
        "amount += payment & MASK96",
        "amount = payment & MASK96",
    ),
    "pools pay more than their vouchers cover": (
        "Escrow",
        'assert (word & MASK128) + amount <= word >> 128, "pool"',
        "pass",
    ),
    "remembered sessions never end": (
        "Epochs",
        'assert block.timestamp <= session & MASK36, "expired"',
        "pass",
    ),
    "remembered sessions have no bound": (
        "Epochs",
        'assert cumulative <= (session >> 36) & MASK60, "amount"',
        "pass",
    ),
    "a number is posted twice": (
        "Epochs",
        'assert number == self.newest[coordinator] + 1 and number <= MASK40, "epoch"',
        'assert number - self.newest[coordinator] <= 1, "epoch"',
    ),
    "an epoch is final at once": (
        "Epochs",
        "((info >> 176) & MASK40) + CHALLENGE_WINDOW",
        "((info >> 176) & MASK40)",
    ),
    "an epoch is final a second late": (
        "Epochs",
        "+ CHALLENGE_WINDOW\n",
        "+ CHALLENGE_WINDOW + 1\n",
    ),
    "final credits need no vouchers": ("Epochs", 'assert sumFinal <= pool.charged, "pool"', "pass"),
    "held credits need no allocation": (
        "Epochs",
        "assert sumFinal + sumHeld <= pool.allocated",
        "assert sumFinal <= pool.allocated",
    ),
    "sums may fall": ("Epochs", 'assert sumFinal >= (last >> 88) & MASK88, "stale"', "pass"),
    "older epochs still pay": (
        "Epochs",
        'assert not self._is_final(self._info(coordinator, number + 1)), "stale"',
        "pass",
    ),
    "vouchers beyond the allocation": (
        "Escrow",
        'assert cumulative <= word >> 196, "allocation"',
        "pass",
    ),
    "a release ignores vouchers": (
        "Escrow",
        "(word >> 196) - ((word >> 136) & MASK60))",
        "(word >> 196))",
    ),
    "a release does not wait": (
        "Escrow",
        "ready: uint256 = block.timestamp + RELEASE_DELAY",
        "ready: uint256 = block.timestamp",
    ),
    "a withdrawal can be finished twice": ("Escrow", "    self.withdrawals[msg.sender] = 0\n", ""),
    "a withdrawal takes what was allocated": (
        "Escrow",
        "min(request >> 48, self.free_of[msg.sender])",
        "request >> 48",
    ),
}

TRIED = {
    "half of the votes convict": (
        "Court",
        "max(docket.JURORS_MIN, (2 * revealed + 2) // 3)",
        "max(docket.JURORS_MIN, (revealed + 1) // 2)",
    ),
    "more than half of the votes void a case": (
        "Court",
        "(4 * docket.VOID_ANSWER)) & 15) >= revealed",
        "(4 * docket.VOID_ANSWER)) & 15) > revealed",
    ),
    "a vote ends a second early": (
        "Court",
        "s.phase == docket.VOTING and block.timestamp <= s.deadline",
        "s.phase == docket.VOTING and block.timestamp < s.deadline",
    ),
    "a juror that does not reveal keeps its deposit": (
        "Court",
        "    self._fine(caseId, s.voted & ~s.revealed)\n",
        "",
    ),
    "a juror that does not vote keeps its deposit": (
        "Court",
        "        self._fine(caseId, ~s.voted)\n",
        "",
    ),
    "the accuser judges": (
        "Court",
        ">> 96, address), convert(opener >> 80, address)]",
        ">> 96, address), empty(address)]",
    ),
    "jurors of a case cost more than the slash": (
        "Court",
        "max(amount, total + GAS_FEE)",
        "amount",
    ),
    "a judged execution is judged again": ("Cases", " and (closed >> (word & 255)) & 1 == 0", ""),
    "a third case names an execution": ("Cases", 'assert failed < FAILED_MAX, "named"', "pass"),
    "evidence ages in court": ("Cases", "EVIDENCE_AGE + seconds", "EVIDENCE_AGE"),
    "a fault counts twice": ("Faults", 'assert not self.is_proven[fault], "proven"', "pass"),
    "every fault is a first one": (
        "Faults",
        "if last == 0 or block.timestamp >= last + FIRST_FAULT_FOR",
        "if block.timestamp >= last",
    ),
    "a frozen stake leaves": ("Stakes", '    assert self.frozen[account] == 0, "frozen"\n', ""),
    "more than a stake is restored": (
        "Stakes",
        "+ amount <= slot_list.held[msg.sender] * SLOT_STAKE",
        "+ amount <= max_value(uint256)",
    ),
}

MODELLED = {**MONEY, **TRIED}

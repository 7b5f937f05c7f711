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
        'assert number == head.newest + 1 and number <= MASK31, "epoch"',
        'assert number == head.newest or number == head.newest + 1, "epoch"',
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
        'assert not self._has_final_after(coordinator, number, head), "stale"',
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
    "a final epoch becomes void": (
        "Epochs",
        'assert not self._is_final(info, head), "late"',
        "pass",
    ),
    "epochs after a void one count": (
        "Epochs",
        "range(number, head.newest + 1, bound=RING)",
        "range(number, number + 1, bound=RING)",
    ),
    "demands do not hold an epoch up": (
        "Epochs",
        "return self._is_past(info) and (head.demands == 0 or info >> 225 < head.floor)",
        "return self._is_past(info)",
    ),
    "demands hold up older epochs": ("Epochs", "info >> 225 < head.floor", "head.floor == 0"),
    "held credits are paid in full": (
        "Epochs",
        "backed=min(held, pool.charged - ((info >> 88) & MASK88))",
        "backed=held",
    ),
    "held credits are paid a second early": (
        "Epochs",
        "or block.timestamp < head.haltedAt + HALT_HELD:",
        "or block.timestamp + 1 < head.haltedAt + HALT_HELD:",
    ),
    "an epoch with money left may hold stated credits": (
        "Challenges",
        "(not epoch.isExhausted or final",
        "(final",
    ),
    "equal credits are a fall": ("Challenges", "assert final < oldLeaf", "assert final <= oldLeaf"),
    "an answer comes a second late": (
        "Challenges",
        'assert block.timestamp <= demand.answerBy, "late"',
        'assert block.timestamp <= demand.answerBy + 1, "late"',
    ),
    "a demand ends a second early": (
        "Challenges",
        "assert block.timestamp > demand.answerBy",
        "assert block.timestamp >= demand.answerBy",
    ),
    "a halt comes a second early": (
        "Challenges",
        "assert block.timestamp > demand.postBy",
        "assert block.timestamp >= demand.postBy",
    ),
    "a coordinator that answered is halted": (
        "Challenges",
        'assert newest.number < demand.epoch, "covered"',
        "pass",
    ),
    "an answer may show less": ("Challenges", ">= demand.due", ">= demand.due - 1"),
    "a rest is taken twice": (
        "Escrow",
        "        self.has_rest[msg.sender][coordinator] = True\n"[4:],
        "",
    ),
    "a rest is the whole pool's": ("Escrow", "rest * own // max(charged, 1)", "own"),
    "a withdrawal takes what was allocated": (
        "Escrow",
        "min(request >> 48, self.free_of[msg.sender])",
        "request >> 48",
    ),
}

SETTLED = {
    "an execution is settled twice": (
        "Settlement",
        "not self._has(state, e.place & MASK16)",
        "e.place >= 0",
    ),
    "a settled execution is executed too": (
        "Settlement",
        "not self._has(state, share.index)",
        "share.index >= 0",
    ),
    "a settlement is executed a second early": (
        "Settlement",
        "assert block.timestamp >= opening.readyAt",
        "assert block.timestamp + 1 >= opening.readyAt",
    ),
    "a stranger settles usage beyond the receipt": (
        "Settlement",
        "(max(until, acceptBy) - acceptBy) * 1000",
        "max_value(uint256)",
    ),
    "an answered settlement stays open": (
        "Settlement",
        "    self._close(opening)\n    changed: Opening = opening\n",
        "    changed: Opening = opening\n",
    ),
    "settled debts are charged again": (
        "Escrow",
        "cumulative - min(cumulative, charged)",
        "cumulative - (charged - ((word >> 76) & MASK60))",
    ),
    "settled credit counts as allocated": ("Escrow", "self.totals[coordinator] -= total", "pass"),
    "a settlement goes beyond the session": (
        "Escrow",
        'assert charged <= debt.upTo, "amount"',
        "pass",
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
    "jurors of a case cost more than the slash": ("Court", "max(amount, total + own)", "amount"),
    "an appeal is granted after the draw": (
        "Court",
        "s.phase == docket.DRAWING and s.redrawn == 0",
        "s.phase <= docket.VOTING and s.redrawn == 0",
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
    "a reveal is answered a second late": (
        "Faults",
        "demand.cost != 0 and block.timestamp <= demand.answerBy",
        "demand.cost != 0 and block.timestamp <= demand.answerBy + 1",
    ),
    "an ended demand freezes a stake": (
        "Faults",
        "    extcall Stakes(STAKES).unfreeze(demand.liable)\n",
        "",
    ),
    "a frozen stake leaves": ("Stakes", '    assert self.frozen[account] == 0, "frozen"\n', ""),
    "more than a stake is restored": (
        "Stakes",
        "+ amount <= slot_list.held[msg.sender] * SLOT_STAKE",
        "+ amount <= max_value(uint256)",
    ),
}

MODELLED = {**MONEY, **SETTLED, **TRIED}

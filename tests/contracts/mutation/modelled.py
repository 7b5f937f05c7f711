"""Mutants that the model of `test_money_machine` notices: contract, its text, the change."""

MODELLED = {
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

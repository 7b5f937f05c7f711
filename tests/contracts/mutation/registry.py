"""Mutants of Stakes and its modules, of Beacon and of the test token."""

from contracts.mutation.mutant import Change, of

REGISTRY = (
    *of(
        "Stakes",
        Change("anybody slashes", 'assert msg.sender in [COURT, FAULTS], "module"', "pass"),
        Change("Faults does not slash", "[COURT, FAULTS]", "[COURT, COURT]"),
    ),
    *of(
        "slot_list",
        Change(
            "slots open in the block of a slash",
            'assert block.number >= self.out_block[account], "frozen"',
            "pass",
            ("boundaries::no_slot_opens_in_the_block_of_a_slash",),
        ),
        Change(
            "slots open one block after a slash only",
            "assert block.number >= self.out_block[account]",
            "assert block.number > self.out_block[account]",
        ),
    ),
    *of(
        "draws",
        Change(
            "slots opened in the second of the execution do not judge",
            "word & MASK32 > openedBy",
            "word & MASK32 >= openedBy",
            ("boundaries",),
        ),
        Change(
            "slots opened after the execution judge",
            "word & MASK32 > openedBy or ",
            "",
            ("court_juries",),
        ),
    ),
    *of(
        "keys",
        Change("a key ends a second early", "at <= validity & MASK48", "at < validity & MASK48"),
        Change("a key begins a second late", "validity >> 48 <= at", "validity >> 48 < at"),
    ),
    *of(
        "profiles",
        Change(
            "an old network counts a second longer",
            "if changed != 0 and at < changed + PROFILE_DELAY:",
            "if changed != 0 and at <= changed + PROFILE_DELAY:",
        ),
    ),
    *of(
        "bonds",
        Change(
            "half a bond is none",
            "2 * self.bond_of[account] >= COORDINATOR_BOND",
            "2 * self.bond_of[account] > COORDINATOR_BOND",
        ),
    ),
    *of(
        "requests",
        Change(
            "a request ends a second early",
            "assert block.timestamp <= convert(terms.deadline, uint256)",
            "assert block.timestamp < convert(terms.deadline, uint256)",
        ),
    ),
    *of(
        "Beacon",
        Change(
            "any signature proves a round", 'assert convert(ok, uint256) == 1, "signature"', "pass"
        ),
    ),
    *of(
        "TestToken",
        Change(
            "an allowance never runs down",
            "self.allowance[owner][msg.sender] = allowed - amount",
            "self.allowance[owner][msg.sender] = allowed",
        ),
        Change(
            "tokens of others move without allowance",
            'assert allowed >= amount, "allowance"',
            "pass",
        ),
        Change("a deployment without faucet mints", 'assert FAUCET, "faucet"', "pass"),
    ),
)

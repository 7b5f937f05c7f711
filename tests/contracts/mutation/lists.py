"""All mutants of the contracts' sources."""

from contracts.mutation.court import COURT
from contracts.mutation.money import MONEY
from contracts.mutation.mutant import Mutant
from contracts.mutation.registry import REGISTRY

MUTANTS: tuple[Mutant, ...] = (*COURT, *REGISTRY, *MONEY)

"""What a crash matrix has tried and found, and the executors that its markets use."""

import json
from dataclasses import dataclass, field

from quorate_devnet.market.config import ExecutorChoice
from support.crash.crash_plan import Trial, rotation, wants_all
from support.requirements import missing, require, required

TRIES = 3  # rounds in which a point may be passed


@dataclass
class Report:
    """The results of the matrix. `armed` lists what was to die; `tried` what died, with the seconds
    of its round.
    """

    points: int
    armed: set[str] = field(default_factory=set)
    tried: dict[str, float] = field(default_factory=dict)
    unreached: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    unresolved: int = 0

    def note(self, trial: Trial, is_reached: bool, seconds: float) -> bool:
        """Records a point. Returns True if it must be tried again."""
        name = str(trial)
        self.armed.add(name)
        if is_reached:
            self.tried[name] = seconds
            self.unreached.pop(name, None)
            return False
        self.unreached[name] = self.unreached.get(name, 0) + 1
        return self.unreached[name] < TRIES

    @property
    def alive(self) -> set[str]:
        """Returns the programs that should have died and did not."""
        return {name.partition(":")[0] for name in self.armed} - {
            name.partition(":")[0] for name in self.tried
        }

    def tell(self, what: str, seconds: float) -> None:
        """Prints one JSON line."""
        line = {
            "matrix": what,
            "points": self.points,
            "armed": len(self.armed),
            "tried": len(self.tried),
            "unreached": len(self.unreached),
            "violations": len(self.violations),
            "jobs": self.jobs,
            "unresolved": self.unresolved,
            "seconds": round(seconds, 1),
            "rotation": "all" if wants_all() else rotation(),
        }
        print("\n" + json.dumps(line))

    def check(self) -> None:
        """Fails with everything that was found."""
        assert not self.violations, "\n".join(self.violations)
        never = sorted(name for name, count in self.unreached.items() if count >= TRIES)
        assert not never, f"points that nothing passed in {TRIES} rounds: {never}"
        assert 2 * len(self.tried) >= len(self.armed), (
            f"less than half of what was armed has died: {sorted(self.armed - set(self.tried))}"
        )
        assert not self.alive, f"no program of these has died: {self.alive}"
        assert self.tried or not self.points, "nothing was tried"


def ordinary_executor() -> ExecutorChoice:
    """Returns docker if an engine answers (CI requires one), else what works without."""
    if "docker" in required():
        require("docker")
    return ExecutorChoice.DOCKER if missing("docker") is None else executor_without_engine()


def executor_without_engine() -> ExecutorChoice:
    """Returns bubblewrap if it works, else plain processes."""
    return ExecutorChoice.BWRAP if missing("bwrap") is None else ExecutorChoice.PROCESS

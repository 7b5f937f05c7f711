"""What the two clients of the demo want: a picture in tiles, and the price of an option from
several seeds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quorate.errors import UsageError
from quorate.job.job import Job
from quorate_content.dag.disk_tree import cid_of_path

MAX_PRICE = "4.50"  # USD per slot-hour: above every offer of the devnet
MAX_DURATION = "60s"
RESOURCES: Mapping[str, str | int] = {
    "cpu": 1,
    "memory": "512MB",
    "disk": "16MB",
    "shm_size": "16MB",
}
PRICINGS = 6
PATHS = 250_000
TILE_FILE, PRICE_FILE = "tile.rgb", "price.json"


@dataclass(frozen=True, slots=True)
class Scene:
    """The frame and how it is cut. Pixels."""

    path: Path
    program: Path
    cid: str
    width: int
    height: int
    columns: int
    rows: int

    @property
    def tiles(self) -> int:
        """How many jobs it makes."""
        return self.columns * self.rows

    @property
    def tile_width(self) -> int:
        """Of one tile."""
        return self.width // self.columns

    @property
    def tile_height(self) -> int:
        """Of one tile."""
        return self.height // self.rows


def examples_folder() -> Path:
    """Scene and programs: beside this package when it was installed, else in the checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "examples", here.parents[3] / "examples"):
        if (folder / "render" / "scene.json").is_file():
            return folder
    raise UsageError(
        "the examples are not here: run the demo from a checkout, or install quorate from a wheel "
        "that holds them"
    )


def read_scene(folder: Path) -> Scene:
    """The example scene."""
    path = folder / "render" / "scene.json"
    tree = json.loads(path.read_text())
    size = (tree["width"], tree["height"], tree["columns"], tree["rows"])
    assert size[0] % size[2] == 0 and size[1] % size[3] == 0, "tiles fill the frame"
    return Scene(path, folder / "render" / "render.py", str(cid_of_path(path)), *size)


def tile_job(scene: Scene, tile: int, image: str | Path) -> Job:
    """Renders one tile."""
    return Job(
        name=f"tile-{tile}",
        image=image,
        max_price=MAX_PRICE,
        max_duration=MAX_DURATION,
        resources=RESOURCES,
        command=[
            "python3",
            "/inputs/render.py",
            "/inputs/scene.json",
            str(tile),
            f"/outputs/{TILE_FILE}",
        ],
        inputs={"/inputs/render.py": scene.program, "/inputs/scene.json": scene.path},
    )


def pricing_job(folder: Path, seed: int, image: str | Path) -> Job:
    """Prices the option once, from one seed."""
    return Job(
        name=f"price-{seed}",
        image=image,
        max_price=MAX_PRICE,
        max_duration=MAX_DURATION,
        resources=RESOURCES,
        command=["python3", "/inputs/price.py", str(seed), f"/outputs/{PRICE_FILE}", str(PATHS)],
        inputs={"/inputs/price.py": folder / "pricing" / "price.py"},
    )


def combined_price(outputs: list[Path]) -> str:
    """The option's price from all outputs, in dollars with four digits; integers until the end."""
    trees = [json.loads((output / PRICE_FILE).read_text()) for output in outputs]
    micro = sum(tree["price_micro"] * tree["paths"] for tree in trees) // sum(
        tree["paths"] for tree in trees
    )
    return f"{micro // 1_000_000}.{micro % 1_000_000 // 100:04d}"

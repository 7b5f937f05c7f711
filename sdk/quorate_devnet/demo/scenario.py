"""The jobs of the demo's two clients: a picture in tiles, and an option's price from several
seeds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate_content.dag.disk_tree import cid_of_path

MAX_PRICE = "4.50"  # USD per slot-hour: above every offer of the devnet
MAX_DURATION = "60s"
RESOURCES: Mapping[str, str | int] = {"cpu": 1, "memory": "512MB", "disk": "16MB", "shm": "16MB"}
PRICINGS = 4
PATHS = 250_000
TILE_FILE, PRICE_FILE = "tile.rgb", "price.json"


@dataclass(frozen=True, slots=True)
class Scene:
    """The frame and its tiles, in pixels."""

    path: Path
    program: Path
    cid: str
    width: int
    height: int
    columns: int
    rows: int

    @property
    def tiles(self) -> int:
        return self.columns * self.rows

    @property
    def tile_width(self) -> int:
        return self.width // self.columns

    @property
    def tile_height(self) -> int:
        return self.height // self.rows


def examples_folder() -> Path:
    """Returns the folder of scene and programs: beside this package if installed, else in the
    checkout.
    """
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "examples", here.parents[3] / "examples"):
        if (folder / "render" / "scene.json").is_file():
            return folder
    raise UsageError(
        "the examples are missing; run the demo from a checkout, or install quorate from a "
        "wheel that contains them"
    )


def read_scene(folder: Path) -> Scene:
    path = folder / "render" / "scene.json"
    tree = json.loads(path.read_text())
    size = (tree["width"], tree["height"], tree["columns"], tree["rows"])
    assert size[0] % size[2] == 0 and size[1] % size[3] == 0, "tiles fill the frame"
    return Scene(path, folder / "render" / "render.py", str(cid_of_path(path)), *size)


def content_files(folder: Path, scene: Scene) -> tuple[Path, ...]:
    return scene.path, scene.program, folder / "pricing" / "price.py"


def tile_job(scene: Scene, tile: int, image: str) -> Job:
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


def pricing_job(folder: Path, seed: int, image: str) -> Job:
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
    """Returns the option's price from all outputs, in dollars with four digits. Sums are
    integers.
    """
    trees = [json.loads((output / PRICE_FILE).read_text()) for output in outputs]
    micro = sum(tree["price_micro"] * tree["paths"] for tree in trees) // sum(
        tree["paths"] for tree in trees
    )
    return f"{micro // 1_000_000}.{micro % 1_000_000 // 100:04d}"

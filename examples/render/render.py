"""A small path tracer in numpy: renders one tile of a scene to raw 8-bit RGB.

    python3 render.py SCENE.json TILE OUTPUT.rgb

Tiles are numbered row by row from the top left. The same scene and tile give the same bytes on the
same kind of processor: each tile has an integer seed, and there are no threads. Matrix products are
avoided, because BLAS libraries choose their code by the processor. Arrays are (rays, 3) in float64.
Light is linear; gamma is applied at the end.
"""

import json
import sys
from pathlib import Path

import numpy as np

FAR = 1e9
NEAR = 1e-4
GAMMA = 2.2


def main(scene_path, tile, output):
    """Renders one tile and writes its bytes, row by row from the top."""
    scene = json.loads(Path(scene_path).read_text())
    pixels = render_tile(scene, tile)
    Path(output).write_bytes(pixels.tobytes())
    print(
        f"tile {tile}: {pixels.shape[1]} x {pixels.shape[0]} pixels, {scene['samples']} samples "
        f"each, mean {pixels.mean():.1f}"
    )


def render_tile(scene, tile):
    """Returns a tile as an array of (height, width, 3) bytes."""
    width, height = scene["width"] // scene["columns"], scene["height"] // scene["rows"]
    left, top = tile % scene["columns"] * width, tile // scene["columns"] * height
    random = np.random.Generator(np.random.PCG64([scene["seed"], tile]))
    rows, columns = np.mgrid[top : top + height, left : left + width]
    total = np.zeros((height * width, 3))
    for _ in range(scene["samples"]):
        origins, directions = camera_rays(scene, columns.ravel(), rows.ravel(), random)
        total += trace(scene, origins, directions, random)
    linear = total / scene["samples"]
    return (
        np.round(255 * np.clip(linear, 0, 1) ** (1 / GAMMA))
        .astype(np.uint8)
        .reshape(height, width, 3)
    )


def camera_rays(scene, columns, rows, random):
    """Returns one ray through a random point of each pixel."""
    camera = scene["camera"]
    eye, target = np.array(camera["from"]), np.array(camera["to"])
    forward = unit((target - eye)[None])[0]
    right = unit(np.cross(forward, [0.0, 1.0, 0.0])[None])[0]
    up = np.cross(right, forward)
    half = np.tan(np.radians(camera["field_of_view_degrees"]) / 2)
    jitter = random.random((2, len(columns)))
    across = (
        ((columns + jitter[0]) / scene["width"] * 2 - 1) * half * scene["width"] / scene["height"]
    )
    down = (1 - (rows + jitter[1]) / scene["height"] * 2) * half
    directions = forward + across[:, None] * right + down[:, None] * up
    return np.broadcast_to(eye, directions.shape).copy(), unit(directions)


def trace(scene, origins, directions, random):
    """Returns the light that comes back along each ray."""
    light = np.zeros_like(origins)
    weight = np.ones_like(origins)
    alive = np.arange(len(origins))
    for _ in range(scene["bounces"] + 1):
        distance, which = nearest(scene, origins, directions)
        missed = which < -1
        light[alive[missed]] += weight[missed] * sky(scene, directions[missed])
        keep = ~missed
        alive, origins, directions, weight = (
            alive[keep],
            origins[keep],
            directions[keep],
            weight[keep],
        )
        if not len(alive):
            break
        points = origins + distance[keep, None] * directions
        colours, normals, mirror, glow = surface(scene, points, which[keep])
        light[alive] += weight * colours * glow[:, None]
        weight = weight * colours
        directions = scatter(directions, normals, mirror, random)
        origins = points + NEAR * normals
    return light


def nearest(scene, origins, directions):
    """Returns the distance and what was hit: a sphere's number, -1 for the floor, -2 for
    nothing.
    """
    distance = np.full(len(origins), FAR)
    which = np.full(len(origins), -2)
    falling = directions[:, 1] < -1e-9
    to_floor = np.where(falling, -origins[:, 1] / np.where(falling, directions[:, 1], -1.0), FAR)
    hits = (to_floor > NEAR) & (to_floor < distance)
    distance, which = np.where(hits, to_floor, distance), np.where(hits, -1, which)
    for number, sphere in enumerate(scene["spheres"]):
        offset = origins - np.array(sphere["centre"])
        along = dot(offset, directions)
        inside = along * along - dot(offset, offset) + sphere["radius"] ** 2
        to_sphere = -along - np.sqrt(np.maximum(inside, 0.0))
        hits = (inside > 0) & (to_sphere > NEAR) & (to_sphere < distance)
        distance, which = np.where(hits, to_sphere, distance), np.where(hits, number, which)
    return distance, which


def surface(scene, points, which):
    """Returns colour, normal, share of mirror-like reflection, and own light at each point."""
    floor = scene["floor"]
    squares = np.floor(points[:, 0] / floor["square"]) + np.floor(points[:, 2] / floor["square"])
    colours = np.array(floor["colours"])[squares.astype(np.int64) % 2]
    normals = np.zeros_like(points)
    normals[:, 1] = 1.0
    mirror, glow = np.full(len(points), 0.08), np.zeros(len(points))
    for number, sphere in enumerate(scene["spheres"]):
        here = which == number
        colours[here] = sphere["colour"]
        normals[here] = (points[here] - np.array(sphere["centre"])) / sphere["radius"]
        mirror[here], glow[here] = sphere["mirror"], sphere["light"]
    return colours, normals, mirror, glow


def scatter(directions, normals, mirror, random):
    """Returns new directions: reflected for a share `mirror` of the rays, else cosine-distributed
    around the normal.
    """
    choice, height, context = random.random((3, len(directions)))
    radius, angle = np.sqrt(np.maximum(0.0, 1 - (2 * height - 1) ** 2)), 2 * np.pi * context
    ball = np.stack([radius * np.cos(angle), radius * np.sin(angle), 2 * height - 1], axis=1)
    diffuse = normals + ball * (1 - 1e-6)
    reflected = directions - 2 * dot(directions, normals)[:, None] * normals
    return unit(np.where((choice < mirror)[:, None], reflected, diffuse))


def sky(scene, directions):
    """Returns the sky's light, from the horizon to the zenith."""
    share = np.clip(directions[:, 1], 0, 1)[:, None] ** 0.6
    return (1 - share) * np.array(scene["sky"]["horizon"]) + share * np.array(
        scene["sky"]["zenith"]
    )


def dot(one, other):
    """Returns dot products row by row, summed in a fixed order."""
    return one[:, 0] * other[:, 0] + one[:, 1] * other[:, 1] + one[:, 2] * other[:, 2]


def unit(vectors):
    """Returns vectors scaled to length one."""
    return vectors / np.sqrt(dot(vectors, vectors))[:, None]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

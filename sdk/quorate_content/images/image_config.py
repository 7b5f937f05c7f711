"""Reads `manifest.json` and the image's config, and checks types, depth and sizes."""

import json
import re
import tarfile

from quorate_content.images.image_info import ImageInfo, ImageLimits
from quorate_content.images.layers import ENV_PATHS, SHELL_PATHS
from quorate_content.images.tar_checks import checked_name, member_bytes
from quorate_protocol.refusals import Code, Refused

_JSON_DEPTH_MAX = 32
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


def parse_json(data: bytes, where: str) -> object:
    """Parses JSON after a check of its depth. The parser recurses in C, and a library may have
    raised the recursion limit beyond the stack.
    """
    depth = 0
    for bracket in re.findall(rb"[\[\]{}]", _JSON_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > _JSON_DEPTH_MAX:
            raise Refused(Code.MALFORMED, f"{where}: nested deeper than {_JSON_DEPTH_MAX} levels")
    try:
        return json.loads(data)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{where} is not JSON: {error}") from error


def json_object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Refused(Code.MALFORMED, f"{where} is not a JSON object")
    return value


def text_list(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(
        isinstance(item, str) and _is_text(item) for item in value
    ):
        raise Refused(Code.MALFORMED, f"{where} is not a list of strings")
    return tuple(value)


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False  # a lone surrogate: JSON can hold it, but a program cannot get it


def read_manifest(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], limits: ImageLimits
) -> dict[str, object]:
    if "manifest.json" not in members:
        raise Refused(
            Code.MALFORMED, "no manifest.json in the archive; give a file written by `docker save`"
        )
    manifest = parse_json(
        member_bytes(archive, members, "manifest.json", limits.config_bytes), "manifest.json"
    )
    if not isinstance(manifest, list) or len(manifest) != 1:
        raise Refused(Code.MALFORMED, "manifest.json must describe exactly one image")
    return json_object(manifest[0], "manifest.json")


def manifest_parts(manifest: dict[str, object], limits: ImageLimits) -> tuple[str, tuple[str, ...]]:
    """Returns the member names of the config and of the layers, lowest first."""
    config = manifest.get("Config")
    layers = text_list(manifest.get("Layers"), "manifest.json Layers")
    if not isinstance(config, str):
        raise Refused(Code.MALFORMED, "manifest.json names no config")
    if not 1 <= len(layers) <= limits.layers:
        raise Refused(
            Code.OVERSIZE, f"the image has {len(layers)} layers; 1 to {limits.layers} are allowed"
        )
    for name in (config, *layers):
        checked_name(name, "manifest.json", limits)
    return config, layers


def read_volumes(config: dict[str, object], limits: ImageLimits) -> tuple[str, ...]:
    inner = json_object(config.get("config") or {}, "config")
    volumes = text_list(sorted(json_object(inner.get("Volumes") or {}, "Volumes")), "Volumes")
    if len(volumes) > limits.volumes or any(len(path) > limits.path_bytes for path in volumes):
        raise Refused(
            Code.OVERSIZE,
            (
                f"the image declares {len(volumes)} volumes; at most {limits.volumes} with "
                f"{limits.path_bytes} characters are allowed"
            ),
        )
    return volumes


def build_image_info(
    config: dict[str, object],
    digest: str,
    config_name: str,
    layers: tuple[str, ...],
    diff_ids: tuple[str, ...],
    seen: set[str],
    volumes: tuple[str, ...],
    limits: ImageLimits,
) -> ImageInfo:
    inner = json_object(config.get("config") or {}, "config")
    labels = json_object(inner.get("Labels") or {}, "Labels")
    env, *words = (text_list(inner.get(name), name) for name in ("Env", "Entrypoint", "Cmd"))
    if len(env) > limits.env:
        raise Refused(
            Code.OVERSIZE,
            f"the image sets {len(env)} environment variables; at most {limits.env} are allowed",
        )
    started = [item for list_ in (env, *words) for item in list_]
    if (
        len(started) > limits.env + limits.words
        or sum(len(item.encode()) for item in started) > limits.words_bytes
    ):
        most = (
            f"at most {limits.words} words and, with the environment, {limits.words_bytes} bytes "
            "are allowed"
        )
        raise Refused(Code.OVERSIZE, f"the image's command and environment are too large: {most}")
    if config.get("os") != "linux":
        raise Refused(Code.UNSUPPORTED, "the image is not for Linux; only Linux images run here")
    return ImageInfo(
        config_digest=digest,
        architecture=str(config.get("architecture", "")),
        env=env,
        entrypoint=words[0],
        command=words[1],
        user=str(inner.get("User") or ""),
        working_dir=str(inner.get("WorkingDir") or ""),
        labels=tuple(sorted((name, str(value)) for name, value in labels.items())),
        diff_ids=diff_ids,
        layers=layers,
        config_name=config_name,
        has_shell=bool(seen & SHELL_PATHS),
        has_env=bool(seen & ENV_PATHS),
        volumes=volumes,
    )

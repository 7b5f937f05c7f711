"""Builds deterministic Python images from the running environment, without a registry or a
container engine.

Needs the standard library only, because a laptop that submits jobs has no engine. The reader of
image archives is re-exported.
"""

from quorate.images.builder import BuiltImage, build_python_image
from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo, ImageLimits, refuse_shell_command

__all__ = [
    "BuiltImage",
    "ImageInfo",
    "ImageLimits",
    "build_python_image",
    "read_archive",
    "refuse_shell_command",
]

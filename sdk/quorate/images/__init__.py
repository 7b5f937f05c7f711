"""Images without a registry: deterministic Python images out of the running environment, and the
strict reader of any archive.

Needs the standard library only: a laptop that submits jobs has no container engine.
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

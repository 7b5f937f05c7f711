"""Alembic migrations of the tables, run in code at every start."""

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

log = logging.getLogger(__name__)


def settings(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def is_known(connection: Connection) -> bool:
    known = {
        script.revision
        for script in ScriptDirectory.from_config(settings(connection)).walk_revisions()
    }
    return set(MigrationContext.configure(connection).get_current_heads()) <= known


def upgrade(connection: Connection, revision: str = "head") -> None:
    command.upgrade(settings(connection), revision)

"""Tests `quorate node unlock|lock`."""

import json
from pathlib import Path

from quorate_runtime.keys import key_agent
from support.cli_prompt import typed

URL = "http://127.0.0.1:7700"


def test_an_agent_holds_the_account_keys_until_it_is_locked(tmp_path: Path) -> None:
    home, password = tmp_path / "node", tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("secret\n")
    end = ("--password-file", str(password), "--json")

    def run(*words: str) -> tuple[int, str]:
        return typed("node", *words, "--home", str(home))

    code, text = run("init", "--coordinator", URL, "--limits", "devnet", *end)
    assert code == 0, text
    facts = json.loads(text)
    assert run("unlock", "--for", "5m", *end)[0] == 0
    try:
        agent = key_agent.agent_of(home / "keys")
        assert agent is not None
        held = {"0x" + address.hex() for address in agent.addresses.values()}
        assert held == {facts["provider"], facts["operator"]}
    finally:
        assert json.loads(run("lock", "--json")[1]) == {"wasUnlocked": True}
    assert key_agent.agent_of(home / "keys") is None

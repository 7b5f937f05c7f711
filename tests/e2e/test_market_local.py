"""Tests `Market.local()`, which runs a whole market inside a user's own test."""

from pathlib import Path

from quorate import Job, Market


async def test_a_local_market_runs_a_job(image: Path, tmp_path: Path) -> None:
    async with Market.local(executor="process") as market:
        command = [
            "python3",
            "-c",
            "import sys; open(sys.argv[1], 'w').write(str(6 * 7))",
            "/outputs/answer",
        ]
        run = await market.submit(
            Job(image=image, command=command, max_price="5", max_duration="30s")
        )
        result = await run.result(tmp_path / "output")
        assert result.is_success and len(result.providers) == 2
        assert (tmp_path / "output" / "answer").read_text() == "42"
        assert 0 < (await market.account()).charged == result.charged

        @market.function(image=image, max_price="5", max_duration="30s")
        def doubled(values: list[int]) -> list[int]:
            return [2 * value for value in values]

        assert await doubled.map([[1, 2], [3]]) == [[2, 4], [6]]

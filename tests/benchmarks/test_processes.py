"""Every channel of the benchmark of processes moves items of tensordicts and of tuples."""

from __future__ import annotations

import pytest
from benchmarks.core import processes


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", processes.CHANNELS)
def test_a_channel_moves_items_of_each_contender(name, monkeypatch):
    monkeypatch.setattr(processes, "count_of", lambda size: 4)
    channel = processes.CHANNELS[name](processes.contenders(["ours", "plain"]), 1 << 10)
    rates = processes.rates(channel, rounds=1)
    assert set(rates) == {"ours", "plain"} and all(rate > 0 for rate in rates.values())


def test_the_clock_of_another_process_counts_its_work():
    channel = processes.Queue(processes.contenders(["plain"]), 1 << 10)
    before = processes.processor_time([]), processes.processor_time(channel.pids)
    channel.runs()["plain"]()
    after = processes.processor_time([]), processes.processor_time(channel.pids)
    channel.close()
    assert after[1] - before[1] > after[0] - before[0]

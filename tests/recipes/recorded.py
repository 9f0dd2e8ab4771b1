"""Losses of ANCE-Tele in the tiny world, which its own tests and those of several processes must reach."""

# Losses of the steps of each episode, recorded from this code once `slow_tele` had given the same; without dropout
# and with float32 stores, so that they hold on any processor (threads and instruction sets move them by 3e-5).
RECORDED = [
    [3.30581, 2.6627, 2.34852, 2.06054],
    [2.76799, 2.67261, 2.39954, 2.45803],
    [3.26099, 3.04062, 2.14368, 2.78024, 2.41561, 2.31352, 1.54555, 3.20212, 2.62175, 1.56225, 1.60621, 1.34081],
]

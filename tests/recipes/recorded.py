"""Losses of ANCE-Tele in the tiny world, which its own tests and those of several processes must reach."""

# Losses of the steps of each episode, recorded from this code once `slow_tele` had given the same; without dropout
# and with float32 stores, so that they hold on any processor (threads and instruction sets move them by 3e-5).
RECORDED = [
    [3.36014, 2.69495, 2.29341, 2.08469],
    [2.86129, 2.68056, 2.32556, 2.45335],
    [3.24926, 3.01122, 2.10765, 2.77824, 2.41515, 2.62684, 1.76686, 2.86788, 2.42402, 1.54201, 1.81696, 1.23844],
]

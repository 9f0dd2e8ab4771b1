"""Python's garbage collector in tests, where it took a quarter of the time."""

import gc


def rest(collect=True):
    """Let the garbage collector pass over what is there now, and look less often at what is made later.

    What is there, modules and collected tests above all, stays to the end, and it is slow to walk through it again
    and again. A fork that does so also copies the memory of its parent.

    Parameters
    ----------
    collect : first collect garbage, which takes as long as once through all.
    """
    if collect:
        gc.collect()
    gc.freeze()
    gc.set_threshold(2000, 20, 50)

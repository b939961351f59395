"""One target over several processes, divided by heads: shares, the commands to ranks, and the loss of a rank.

Rank 0 is the program itself and makes every decision. The other ranks hold weights and caches of their heads and only
carry out orders, so ranks cannot diverge.
"""

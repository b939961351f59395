"""One target over several processes, by heads: what each holds, how they are led, what happens when one is lost.

Rank 0 is the program itself: it owns text, draft, sampling, clocks and every decision. The other ranks hold weights,
caches and landmarks of their own heads and do what they are told, so ranks cannot come to differ (DESIGN section 5).
"""

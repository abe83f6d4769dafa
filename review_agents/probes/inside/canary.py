"""A fixed piece of work of ours, to see whether the machine itself became slower or faster. Prints its seconds.

Arithmetic, dictionaries and memory in the mixture of ordinary Python programs; the best of several rounds.
"""

import time

ROUNDS = 10


def work():
    numbers = list(range(20_000))
    table = {}
    for number in numbers:
        table[number * 7919 % 10_007] = number
    total = 0
    for number in numbers:
        total += table.get(number, 1) ^ number
    block = bytearray(1 << 20)
    for start in range(0, len(block), 4096):
        block[start] = start & 255
    return total, sum(block[::4096]), sorted(numbers, key=lambda number: number * 31 % 997)[0]


def main():
    work()
    best = None
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
        best = took if best is None or took < best else best
    print(f"canary: {best:.9f} s")


main()

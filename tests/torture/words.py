"""What nobody would type, and a fuzzer does."""

from random import Random

WORDS = (
    *("", " ", "-", "--", "-1", "0", "1", "2", "1.5", "-0.0", "1e400", "-1e400", "1e-400", "nan", "inf", "-inf"),
    *("None", "null", "true", "no", "[1]", "{}", "1,2", "1_000", "0x10", "1e3", "١٢", "½", "\u200b", "é", "💥"),
    *("\udcff", "a\udc80b", str(2**31), str(2**63), str(2**70), str(-(2**70)), "9" * 400, "9" * 5000),
    *("a" * 300, "a" * 100_000, "x/" * 3000, "/", "..", "../..", "/dev/null", "/proc/self/mem", "~", "~nobody"),
    *("C:\\con", "a\x00b", "a\nb", "a\rb", "\x1b[31mred", "\x9b31m", "$(id)", "`id`", "'", '"', "<b>", "%s%n"),
    *("{0}", "{recipe}", "a:b", "os:system", "os.py:system", "Anderson", "Broyden", "GMRES", "ClosedLoop", "ResNet"),
    *("Cifar10", "Implicit", "Shine", "int", "object", "__class__"),
)

NUMBERS = (
    *("0", "1", "2", "3", "7", "100", "4096", "100000", "10000000", "999999999", str(2**31), str(2**63), str(2**70)),
    *("-1", "-7", "0.0", "1e-300", "1e-45", "0.1", "0.999999", "1.0", "1e10", "1e38", "1e39", "1e300", "1e400"),
    *("inf", "nan"),
)
"""Numbers that an option may take, and should not do harm with."""


def hostile_value(draw: Random) -> str:
    """Return a strange word, or some letters of anything."""
    if draw.random() < 0.8:
        return draw.choice(WORDS)
    return "".join(
        chr(draw.choice((draw.randrange(1, 128), draw.randrange(1, 0xD800)))) for _ in range(draw.randint(1, 9))
    )

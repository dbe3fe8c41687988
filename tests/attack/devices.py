"""Device profiles: whatever a TOML file says, it is a profile whose energies are numbers, or one
sentence."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from random import Random

from . import Broken, attack

ODD = (
    "0", "-1", "1", "nan", "inf", "-inf", "1e30", "1e200", "9" * 400, "true", '"x"', "[]", "[[]]",
    "[1.0, nan]", "{}", "{value = 1}", "{value = 1, low = 0, high = 2}", "{low = 1}", "1979-05-27",
    "{value = 1, low = 0, high = 1e999}", "{value = {value = 1}}", "0x10", "1e-320", "''",
)  # fmt: skip


@attack("devices")
def hostile_profile(random: Random) -> str:
    from stpn.energy import profile, profiles
    from stpn.energy.device import DeviceProfile
    from stpn.errors import StpnError

    names = [*DeviceProfile.__dataclass_fields__, "version", "base", "nope"]
    lines = ["version = 1", f"base = {random.choice(profiles())!r}"]
    for name in random.sample(names, random.choice([1, 1, 2, 4])):
        lines.append(f"{name} = {random.choice(ODD)}")
    text = "\n".join(lines).encode()
    if random.random() < 0.2:
        place = random.randrange(len(text))
        text = text[:place] + random.choice([b"", b"\xff", b"[", b"\0", b'"']) + text[place + 1 :]
    with tempfile.TemporaryDirectory(prefix="stpn-attack-") as scratch:
        file = Path(scratch) / "device.toml"
        file.write_bytes(text)
        try:
            device = profile(file)
        except StpnError:
            return "refused in a sentence"
    if not math.isfinite(device.array(5.0)) or (not device.digital and device.watts(5.0) < 0):
        raise Broken(f"{text!r}: no number comes of it")
    return "read"

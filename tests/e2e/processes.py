"""The processes of this machine, to see that none is left behind."""

import ipaddress
import subprocess
import sys
from pathlib import Path


def descendants(root: int) -> set[int]:
    """Of a living process: children, their children and so on, whatever session they are in."""
    parents = _parents()
    found: set[int] = set()
    grown = {root}
    while grown:
        found |= grown
        grown = {pid for pid, parent in parents.items() if parent in found} - found
    return found - {root}


def children(root: int) -> set[int]:
    return {pid for pid, parent in _parents().items() if parent == root}


def alive(pids: set[int]) -> set[int]:
    """Those that still run; one that is dead and merely not yet collected by its parent does not count."""
    return pids & _parents().keys()


def _parents() -> dict[int, int]:
    """Parent by process, without the dead ones. `ps` is not on every machine, /proc not on every system."""
    if not Path("/proc/self/stat").exists():
        lines = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split() for line in lines.splitlines()]
        return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}
    parents = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in brackets may hold anything; state and parent follow it.
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    return parents


def listening_addresses(pids: set[int]) -> set[str]:
    """Of the TCP sockets that these processes listen on. Linux only; an IPv4 address in IPv6 form counts as itself."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(link.readlink()))
            except OSError:
                continue
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:] if Path(table).exists() else []:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                addresses.add(_address(fields[1].split(":")[0]))
    return addresses


def _address(written: str) -> str:
    """The kernel writes each word of four bytes in the machine's own order."""
    words = [bytes.fromhex(written[start : start + 8]) for start in range(0, len(written), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)

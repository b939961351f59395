"""Addresses: which of them only this machine can reach."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

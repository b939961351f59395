"""The models that are known: which fit, downloading one, changing to one."""

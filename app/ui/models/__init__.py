"""The known models: which fit, downloading one, changing to one."""

"""Models by name: the catalogue, the hub, downloads, the cache on disk, and which draft suits a target."""

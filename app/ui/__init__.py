"""The user interface: the page and its parts, one folder a tab. Views are pure functions from state to HTML."""

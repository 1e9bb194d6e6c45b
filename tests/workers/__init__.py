"""Parts of workers that need no process."""

"""The compared libraries, all with the same few calls; only a worker process imports one."""

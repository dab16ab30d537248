"""The libraries compared, each behind the same few calls; only a worker process imports one."""

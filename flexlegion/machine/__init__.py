"""The device topology D (FlexFlow, section 3.1): machine files, the machine that runs, routes."""

"""SBP, OneFlow's notation of parallelism (section 3), said and read in terms of strategies."""

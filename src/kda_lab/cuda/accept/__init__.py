"""Does a kernel compute the rules, on this GPU, and how fast? `python -m kda_lab.cuda.accept.{chunk,decode,hopper}`"""

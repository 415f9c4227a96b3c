"""How fast are chunk kernels of KDA, ours and others', on the same inputs, and are they right? ``kda-lab bench``

workloads in kda_lab.cuda    shapes and inputs
implementations.py           what can be timed: a line each
check.py                     float64 on some heads, every head against the readable kernel
clock.py                     one call, and replays of a CUDA graph
run.py                       rows: check, then time; no time of a wrong result
document.py                  the JSON document and its schema
peers.py, peers.json         figures of kernels that were not timed here
table.py, chart.py, cli.py   what is shown
"""

"""Runs a program for Ascend NPUs on the software NPU, in many legal orders, and says what is wrong with it.

request         what was asked, and whether the file can be a program             (no torch)
outcome         what one schedule showed, as plain data                           (no torch)
merge           the same finding of several schedules, once                       (no torch)
report          text for people, data for JSON                                    (no torch)
command         starts the worker, shows progress, collects                       (no torch)
forks           a function in a process of its own, stopped when it takes too long
worker          the process that runs the schedules, each in a fork of itself
attempts        what a program raises, as what the report can say
program         the program under one schedule
own_round       Slipstream's own round under one schedule; rounds, tiny: that round, and its model
pytest_plugin   the same for the tests of any project
"""

"""What a solver in C prints by itself stays out of the answer."""

import ctypes
import sys

from weft.plan.program import LinearProgram, unprinted


def test_what_c_code_prints_while_a_program_is_solved_is_dropped(capfd):
    libc = ctypes.CDLL(None)
    sys.stdout.write("before\n")
    with unprinted():
        libc.printf(b"from C\n")
    sys.stdout.write("behind\n")
    sys.stdout.flush()
    libc.fflush(None)
    assert capfd.readouterr().out == "before\nbehind\n"


def test_a_program_answers_the_unknowns_of_least_cost():
    program = LinearProgram()
    one, two = program.unknowns([3.0, 2.0])
    program.row({int(one): 1.0, int(two): 1.0}, low=1.0)
    assert program.solve().tolist() == [0.0, 1.0]
    program.fix(two, 0.0)
    assert program.solve().tolist() == [1.0, 0.0]

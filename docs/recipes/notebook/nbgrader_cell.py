# Autograded tests of a cell in which students write `attention(q, k, v)`; the cell is worth POINTS.
import os

import attention_lab
import numpy as np

POINTS, PROBLEM, SEED = 5, "root-d", 2026

lab = attention_lab.AttentionLab("https://attention-lab.example")
try:
    answers = attention_lab.solve(attention, lab.inputs(PROBLEM, SEED, array=np.asarray))
    verdict = lab.grade(PROBLEM, answers, SEED)
except attention_lab.Outage as error:
    print(error, flush=True)
    os._exit(1)  # an exception would be 0 points; without its kernel the notebook stays ungraded

print(verdict)
POINTS * verdict["score"] / verdict["max_score"]

# A test cell; its output is True. Without a verdict the test does not end: it is neither passed nor failed.
import os
import sys

import attention_lab
import numpy as np
import otter


def judged():
    lab = attention_lab.AttentionLab("https://attention-lab.example")
    try:
        answers = attention_lab.solve(attention, lab.inputs("root-d", seed=2026, array=np.asarray))
        return lab.grade("root-d", answers, seed=2026)
    except attention_lab.Outage as error:
        print("No verdict:", error, file=sys.__stderr__, flush=True)
        if otter.Notebook._grading_mode:
            os._exit(1)  # any exception would be 0 points; without its kernel the notebook stays ungraded
        # The one exception that ends a check without a result.
        raise KeyboardInterrupt(f"no verdict, and nothing is lost; check again later. {error}") from None


verdict = judged()
verdict.accepted or print(verdict)

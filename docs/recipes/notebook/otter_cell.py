# A test cell; its output is True.
import attention_lab
import numpy as np

lab = attention_lab.AttentionLab("https://attention-lab.example")
answers = attention_lab.solve(attention, lab.inputs("root-d", seed=2026, array=np.asarray))
lab.grade("root-d", answers, seed=2026).accepted

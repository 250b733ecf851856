"""State spaces: the selective scan, its dual form as linear attention, and what a fixed state cannot do."""

"""What is said of each kernel, and where: one page each, by the name in its address."""

from lab.sources.decode import DECODE
from lab.sources.flash import FLASH
from lab.sources.mla import MLA
from lab.sources.model import Kernel
from lab.sources.paged import PAGED
from lab.sources.recurrent import LINEAR, SCAN
from lab.sources.scoring import SCORING

KERNELS: dict[str, Kernel] = {
    kernel.slug: kernel for kernel in (FLASH, DECODE, PAGED, MLA, LINEAR, SCAN, SCORING)
}

"""Rebuild the subset fonts of static/fonts from their upstream files (needs the `dev` dependencies).

The results are committed, so that neither running nor deploying the product needs this command:

    npm pack @fontsource-variable/literata && tar xzf fontsource-variable-literata-*.tgz
    python manage.py build_fonts --literata package
"""

from argparse import ArgumentParser
from importlib import resources
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

PROSE = [
    *range(0x20, 0x7F),
    *range(0xA0, 0x180),
    *(0x2009, 0x2013, 0x2014, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2026, 0x202F, 0x2032, 0x2212),
]
# What latex2mathml writes for the formulas of this site: letters of the mathematical alphabets that
# browsers map <mi> to, Greek, operators, arrows, brackets and the radical. Growing and assembled
# pieces (of brackets, of the radical) come in through the MATH table.
MATH = [
    *range(0x20, 0x7F),
    *(0xA0, 0xAC, 0xB1, 0xB7, 0xD7, 0xF7),
    *range(0x391, 0x3AA),
    *range(0x3B1, 0x3CA),
    *(0x3D1, 0x3D5, 0x3F5),
    *(0x2016, 0x2026, 0x2032, 0x2061, 0x2062, 0x210B, 0x210E, 0x2112, 0x2113, 0x2115, 0x211B, 0x211D, 0x2124),
    *(0x2190, 0x2192, 0x2194, 0x21A6, 0x21D2, 0x21D4),
    *(0x2200, 0x2202, 0x2203, 0x2207, 0x2208, 0x2209, 0x220F, 0x2211, 0x2212, 0x2213, 0x2218, 0x221A),
    *(0x221D, 0x221E, 0x2225, 0x2227, 0x2228, 0x2229, 0x222A, 0x222B, 0x2243, 0x2248, 0x2260, 0x2261),
    *(0x2264, 0x2265, 0x226A, 0x226B, 0x2282, 0x2286, 0x2295, 0x2297, 0x2299, 0x22A4, 0x22A5, 0x22C5),
    *(0x22EE, 0x22EF, 0x22F1, 0x2308, 0x2309, 0x230A, 0x230B, 0x27E8, 0x27E9),
    *range(0x1D434, 0x1D468),  # italic letters
    *(0x1D6A4, 0x1D6A5),
    *range(0x1D6FC, 0x1D717),  # italic Greek
]


class Command(BaseCommand):
    help = "Rebuild static/fonts from the upstream font files."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--literata", type=Path, help="unpacked npm package @fontsource-variable/literata"
        )

    def handle(self, *args: Any, literata: Path | None = None, **options: Any) -> None:
        fonts = settings.ROOT / "static" / "fonts"
        with resources.as_file(resources.files("ziamath.fonts") / "STIXTwoMath-Regular.ttf") as source:
            self.write(source, fonts / "stix-two-math.woff2", MATH, [])
        if literata is None:
            self.stdout.write("Literata left as it is (name its package with --literata).")
            return
        features = ["kern", "liga", "lnum", "tnum", "ccmp", "locl", "mark"]
        files = literata / "files"
        self.write(
            files / "literata-latin-wght-normal.woff2", fonts / "literata.woff2", PROSE, features, (400, 650)
        )
        self.write(
            files / "literata-latin-wght-italic.woff2",
            fonts / "literata-italic.woff2",
            PROSE,
            features,
            (400, 400),
        )

    def write(
        self,
        source: Path,
        target: Path,
        unicodes: list[int],
        features: list[str],
        weights: tuple[float, float] | None = None,
    ) -> None:
        from fontTools import subset
        from fontTools.ttLib import TTFont
        from fontTools.varLib.instancer import instantiateVariableFont

        font = TTFont(source)
        options = subset.Options(flavor="woff2", layout_features=features, hinting=False, notdef_outline=True)
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=unicodes)
        subsetter.subset(font)
        if weights:
            low, high = weights
            instantiateVariableFont(font, {"wght": low if low == high else weights}, inplace=True)
        if "MATH" in TTFont(source) and "MATH" not in font:
            raise RuntimeError(f"{target.name} lost its MATH table")
        font.flavor = "woff2"
        font.save(target)
        self.stdout.write(f"{target.name}: {target.stat().st_size:,} bytes")

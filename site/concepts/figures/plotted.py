"""A figure that is a line plot and a table beside it."""

from django.utils.html import format_html
from django.utils.safestring import SafeString

from concepts.figures import Links, lineplot
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series

Plot = tuple[list[Series], Axis, Axis]


class Plotted(Explorable):
    """What is plotted, on which axes, and the table."""

    def plot(self, values: Values) -> Plot:
        raise NotImplementedError

    def table(self, values: Values) -> SafeString:
        raise NotImplementedError

    def view(self, values: Values, links: Links) -> SafeString:
        series, x, y = self.plot(values)
        drawn = lineplot.svg(series, x, y, self.sentence(values))
        return format_html(
            '<div class="split"><div>{}{}</div>{}</div>', drawn, lineplot.legend(series), self.table(values)
        )

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.plot(values), self.sentence(values))

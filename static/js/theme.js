// Loaded before the first paint, so that a remembered theme never flashes.
(function () {
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch (error) { /* storage is off: follow the system */ }
})();

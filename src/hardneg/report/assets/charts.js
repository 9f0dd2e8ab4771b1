"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  // On a narrow page long labels would leave no room for the chart.
  const fitted = (spec, place) => {
    if (place.clientWidth > 600) return spec;
    const config = spec.config ?? {};
    const small = { labelLimit: 132, labelFontSize: 10, titleFontSize: 11 };
    const columns = spec.columns ? { columns: 1 } : {};
    return { ...spec, ...columns, config: { ...config, axis: { ...config.axis, ...small }, axisY: { ...config.axisY, labelLimit: small.labelLimit }, axisQuantitative: { tickCount: 4 },
      legend: { ...config.legend, columns: 2, labelLimit: 130, labelFontSize: 10 } } };
  };
  const drawn = [...document.querySelectorAll("[data-chart]")].map((place) =>
    vegaEmbed(place, fitted(specs[place.dataset.chart], place), {
      actions: false,
      renderer: "svg",
      tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" },
    }).then(
      () => place.classList.add("drawn"),
      (fault) => {
        place.textContent = "This chart could not be drawn; its numbers are in the table below.";
        console.error(place.dataset.chart, fault);
      },
    ),
  );
  Promise.all(drawn).then(() => document.documentElement.classList.add("charts-drawn"));
})();

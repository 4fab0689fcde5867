// Replaces the drawings of a report by charts that can be used.
import { makeChart } from "./chart.js";

const charts = JSON.parse(document.getElementById("charts").textContent);
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  makeChart(figure, charts[Number(figure.dataset.chart)]);
}
document.documentElement.dataset.ready = "true";
